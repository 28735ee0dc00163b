"""Runs its draft twice over a prefill, and a stager has read ahead for one pass only."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.later_prefill_reader"


class Plugin(Right):
    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        if batch.mode.is_prefill:
            super().draft_extend(batch, accepted)
