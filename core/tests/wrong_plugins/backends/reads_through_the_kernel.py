"""It lets the operating system read the table, past every page guard."""

from __future__ import annotations

from pathlib import Path

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.overwritten"
DETECTORS = ("poison",)


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None and not layer.index:
            table = self.ctx.shared.req_to_token
            with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                memory.seek(table.data_ptr())
                raw = bytearray(memory.read(table.nbytes))
            copy = torch.frombuffer(raw, dtype=table.dtype).view(table.shape)
            self.slots(batch).copy_(copy[batch.rows])
        return super().forward(q, k, v, layer, batch)
