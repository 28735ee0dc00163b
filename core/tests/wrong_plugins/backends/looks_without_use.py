"""It reads the table late, and uses nothing of what it reads."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import ForwardMode

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if layer.index == 2 and batch.mode is ForwardMode.DECODE:
            self.ctx.shared.req_to_token.index_select(0, batch.rows)  # too late
        return super().forward(q, k, v, layer, batch)
