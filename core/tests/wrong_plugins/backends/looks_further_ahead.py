"""Where a draft goes on from token to token, it looks its pages up again for each of them."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.ahead is not None:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
