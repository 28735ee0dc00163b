"""Numbers the nodes of its tree from the last one."""

from __future__ import annotations

from wrong_plugins.spec_algos.branches import Branches

BREAKS = "spec_algo.drafts"


class Plugin(Branches):
    def parent(self, stem):
        return self.ctx.num_tokens - stem
