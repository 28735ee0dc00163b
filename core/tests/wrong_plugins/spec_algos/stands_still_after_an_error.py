"""Takes itself to be in the middle of a step until its draft_extend comes."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.slots"


class Plugin(Right):
    in_a_step = False

    def draft(self, batch):
        if self.in_a_step:
            raise RuntimeError("draft came twice")
        self.in_a_step = True
        return super().draft(batch)

    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        self.in_a_step = self.in_a_step and batch.mode.is_prefill
