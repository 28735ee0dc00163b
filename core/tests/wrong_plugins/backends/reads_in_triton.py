"""A kernel of it reads the table in its layers."""

from __future__ import annotations

from wrong_plugins.backends.in_triton import InTriton

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(InTriton):
    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None and not layer.index:
            self.launch(batch)
        return super().forward(q, k, v, layer, batch)
