"""It copies its rows in time, and translates them for the window pool in the layers."""

from __future__ import annotations

from wrong_plugins.backends.right import Pooled, Windowed

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Pooled):
    def gather(self, batch):
        Windowed.gather(self, batch)

    def forward(self, q, k, v, layer, batch):
        self.translate(batch)  # too late: the map is shared as well
        return super().forward(q, k, v, layer, batch)
