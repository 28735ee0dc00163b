"""Fills one of three buffers of pinned memory in turn: a step is over when its turn comes again."""

from __future__ import annotations

import torch
from wrong_plugins.backends_engine import refills_pinned_memory

BREAKS = "backend.nothing"
BUFFERS = 3


class Plugin(refills_pinned_memory.Plugin):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.buffers = [torch.zeros(8, dtype=torch.int64) for _ in range(BUFFERS)]

    def fill(self, size):
        self.pinned, *rest = self.buffers
        self.buffers = [*rest, self.pinned]
        super().fill(size)
