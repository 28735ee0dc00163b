"""It writes the scheduler's table in its layers."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.never_writes"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        self.ctx.shared.req_to_token[0, 0] = 0  # not its to write
        return super().forward(q, k, v, layer, batch)
