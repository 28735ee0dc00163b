"""Names a draft runner that executes in drafts alone, so that its event never comes."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.could_be_earlier"


class Plugin(Right):
    later_prefill_reader = False

    def draft_extend(self, batch, accepted):
        pass
