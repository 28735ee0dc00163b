"""Copies the table before the end, in each mode in another way: numpy, bytes, address, DLPack."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from wrong_plugins.backends.right import Right

from warcore import ForwardMode

BREAKS = "backend.nothing"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.address = ctx.shared.req_to_token.data_ptr()

    def gather(self, batch):
        self.slots(batch).copy_(self.copied(batch.mode)[batch.rows])

    def copied(self, mode):
        table = self.ctx.shared.req_to_token
        if mode is ForwardMode.DECODE:
            return torch.from_numpy(table.numpy().copy())
        if mode is ForwardMode.EXTEND:
            raw = bytearray(memoryview(table.numpy()).cast("B"))
            return torch.frombuffer(raw, dtype=table.dtype).view(table.shape)
        if mode is ForwardMode.TARGET_VERIFY:
            copy = torch.empty_like(table)
            ctypes.memmove(copy.data_ptr(), self.address, copy.nbytes)
            return copy
        return torch.from_numpy(np.from_dlpack(table).copy())

    def forward(self, q, k, v, layer, batch):
        # To compare an address is to read nothing.
        assert self.ctx.shared.req_to_token.data_ptr() == self.address
        return super().forward(q, k, v, layer, batch)
