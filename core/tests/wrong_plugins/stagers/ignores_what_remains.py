"""Stages each runner, and does not ask whether that was all."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.true_is_true"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def ahead(self, runner, batch):
        runner.stage(batch)
        return True
