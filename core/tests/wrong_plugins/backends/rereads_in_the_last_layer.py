"""It declares its reads done with the in-graph metadata, and its last layer gathers again."""

from __future__ import annotations

from wrong_plugins.backends.right import InGraph

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(InGraph):
    def forward(self, q, k, v, layer, batch):
        if layer.index == 2:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
