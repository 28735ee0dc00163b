"""Keeps every batch, to look back at them some day."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.slots"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.seen = []

    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        self.seen.append((batch, accepted))
