"""Stages for the first draft runner, as if there were no other."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.true_is_true"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def stage(self, batch):
        return self.ahead(self.ctx.drafts[0], batch)
