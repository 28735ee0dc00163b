"""Declines every batch."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.could_be_earlier"


class Plugin(Right):
    def stage(self, batch):
        return False
