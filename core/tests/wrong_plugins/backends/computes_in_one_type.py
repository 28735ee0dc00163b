"""It accepts every element type, and stores keys in one."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.serves"


class Plugin(Right):
    def attend(self, q, k, v, seen, layer):
        return super().attend(q, k, v, seen, layer).view(torch.float32)
