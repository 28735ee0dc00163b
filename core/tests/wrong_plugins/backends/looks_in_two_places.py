"""It reads the table late at one line of its decode steps, and at another of its prefills."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import ForwardMode

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        table = self.ctx.shared.req_to_token
        if layer.index == 2 and batch.mode is ForwardMode.DECODE:
            table.index_select(0, batch.rows)  # too late in a decode step
        if layer.index == 1 and batch.mode is ForwardMode.EXTEND:
            table[1, :3].clone()  # too late in a prefill
        return super().forward(q, k, v, layer, batch)
