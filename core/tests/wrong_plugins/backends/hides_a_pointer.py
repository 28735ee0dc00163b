"""It copies through the address of the table, which no call of torch shows."""

from __future__ import annotations

import ctypes

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "poison")


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.address = ctx.shared.req_to_token.data_ptr()

    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None:
            table = self.ctx.shared.req_to_token
            copy = torch.empty(table.shape, dtype=table.dtype)
            ctypes.memmove(copy.data_ptr(), self.address, copy.nbytes)
            self.slots(batch).copy_(copy[batch.rows])
        return super().forward(q, k, v, layer, batch)
