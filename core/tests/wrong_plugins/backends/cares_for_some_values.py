"""It reads late what matters for values that the table never holds."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        slots = self.ctx.shared.req_to_token.index_select(0, batch.rows)  # too late
        return torch.where((slots < 0).any(), out * 2, out)
