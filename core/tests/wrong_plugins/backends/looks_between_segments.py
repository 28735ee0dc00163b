"""Its layers look once more where a graph is broken, behind the marker of the first segment."""

from __future__ import annotations

from wrong_plugins.backends.right import InGraph

from warcore import GraphKind

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(InGraph):
    def forward(self, q, k, v, layer, batch):
        if self.ctx.graph is GraphKind.BREAKABLE:
            self.gather(batch)
        return super().forward(q, k, v, layer, batch)
