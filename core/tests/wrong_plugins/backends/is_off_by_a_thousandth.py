"""Its outputs are a thousandth too large."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.parity"


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        return super().forward(q, k, v, layer, batch) * 1.001
