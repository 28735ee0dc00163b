"""Batches of eight and more take a fused kernel, which looks into the table for itself."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.padded_size >= 8:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
