"""Looks its slots up once more behind the verify of four requests and more, without a vote."""

from __future__ import annotations

from wrong_plugins.spec_algos.reads_in_time import table_of
from wrong_plugins.spec_algos.remembers import Remembers

from warcore import ForwardMode

BREAKS = "spec_algo.last_reader"
DETECTORS = ("guard", "attribution")


class Plugin(Remembers):
    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        if batch.mode is ForwardMode.DRAFT_EXTEND and batch.size >= 4:
            table_of(self).index_select(0, batch.rows)
