"""It accepts every element type, and refuses one when it is built."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.builds"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        if ctx.spec.dtype is torch.bfloat16:
            raise ValueError("bfloat16 is not for it")  # too late
