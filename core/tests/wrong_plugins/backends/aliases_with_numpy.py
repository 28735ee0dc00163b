"""It reads the table through an array of numpy, which no call of torch shows."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "poison")


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.array = ctx.shared.req_to_token.numpy()

    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None:
            rows = self.array[batch.rows.numpy()]  # too late
            self.slots(batch).copy_(torch.from_numpy(rows))
        return super().forward(q, k, v, layer, batch)
