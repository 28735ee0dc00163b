"""Moves the batch to where the draft goes on, in place."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.costs_overlap_only"


class Plugin(Right):
    def stage(self, batch):
        staged = super().stage(batch)
        batch.tokens.copy_(batch.tokens.roll(-1))
        return staged
