"""Heads of more than 128 numbers take another kernel, which looks into the table for itself."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if layer.head_dim > 128:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
