"""Has two draft runners, and names the one that reads first."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.last_reader"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.second = ctx.make_runner(ctx.model)

    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        self.second.execute(batch)
