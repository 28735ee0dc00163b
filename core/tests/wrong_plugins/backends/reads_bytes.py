"""It reads the table through a memoryview, which no call of torch shows."""

from __future__ import annotations

import ctypes

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "poison")


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        table = ctx.shared.req_to_token
        raw = (ctypes.c_int32 * table.numel()).from_address(table.data_ptr())
        self.bytes = memoryview(raw).cast("B").cast("i")

    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None and not layer.index:
            slots = torch.tensor(self.bytes.tolist())  # too late
            slots = slots.view(self.ctx.shared.req_to_token.shape)
            self.slots(batch).copy_(slots[batch.rows])
        return super().forward(q, k, v, layer, batch)
