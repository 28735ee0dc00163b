"""Looks into the page table itself behind its draft's last phase, and says so: its steps wait."""

from __future__ import annotations

from wrong_plugins.spec_algos.reads_in_time import table_of
from wrong_plugins.spec_algos.right import Right

from warcore import SharedReadEnds

BREAKS = "spec_algo.nothing"


class Plugin(Right):
    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        table_of(self)[batch.rows, 0].sum()

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.UNKNOWN
