"""What it reads late decides which way it goes."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        if batch.bucket is None and self.ctx.shared.req_to_token[1, 0].item() == 0:  # too late
            return out * 2
        return out
