"""Stages nothing, and says True."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.true_is_true"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def stage(self, batch):
        return True
