"""Numbers of half precision are gathered by the kernel of its captured layers, too late."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.bucket is not None and q.dtype in {torch.bfloat16, torch.float16}:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
