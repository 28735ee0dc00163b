"""It says that it serves trees, and takes every draft for a chain."""

from __future__ import annotations

from wrong_plugins.backends.right import Windowed

BREAKS = "backend.parity"


class Plugin(Windowed):
    def branch(self, at, batch):
        return at <= batch.positions[:, None]
