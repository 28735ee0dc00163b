"""Stages a batch of one size once, and takes the next ones of that size as staged."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.true_is_true"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.sizes = set()

    def stage(self, batch):
        if batch.size in self.sizes:
            return True
        staged = super().stage(batch)
        if staged:
            self.sizes.add(batch.size)
        return staged
