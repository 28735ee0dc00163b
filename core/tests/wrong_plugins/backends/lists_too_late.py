"""It brings a part of the table to the host in its layers."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None:
            self.ctx.shared.req_to_token[1, :2].tolist()  # too late
        return super().forward(q, k, v, layer, batch)
