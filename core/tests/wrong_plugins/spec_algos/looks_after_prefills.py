"""Looks into the page table itself when a prefill is over, beside what its runner reads."""

from __future__ import annotations

from wrong_plugins.spec_algos.reads_in_time import table_of
from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.later_prefill_reader"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        if batch.mode.is_prefill:
            table_of(self)[batch.rows, 0].sum()
