"""Copies slots ahead once for each number of requests, and serves them again to the next ones."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.nothing_outlives"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.kept = {}

    def ahead(self, runner, batch):
        staged = super().ahead(runner, batch)
        slots = runner._backend.slots(batch)
        slots.copy_(self.kept.setdefault((runner, batch.size), slots.clone()))
        return staged
