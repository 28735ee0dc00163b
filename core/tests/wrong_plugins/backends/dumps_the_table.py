"""Writes the table to a file in its last layer, for somebody to debug: a system call reads it."""

from __future__ import annotations

import os
import tempfile

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard",)


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None and layer.index == len(self.ctx.kv) - 1:
            table = memoryview(self.ctx.shared.req_to_token.numpy()).cast("B")
            with tempfile.TemporaryFile(buffering=0) as file:
                os.write(file.fileno(), table)  # too late
        return super().forward(q, k, v, layer, batch)
