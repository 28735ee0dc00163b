"""A little of the batch's mean is in each output."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.rows"
DETECTORS = ("poison",)


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        return out + 1e-6 * out.mean()
