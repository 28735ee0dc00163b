"""It says that it serves windows, and attends to everything."""

from __future__ import annotations

import attrs
from wrong_plugins.backends.right import Windowed

BREAKS = "backend.parity"


class Plugin(Windowed):
    def seen(self, slots, layer, batch):
        return super().seen(slots, attrs.evolve(layer, window=None), batch)
