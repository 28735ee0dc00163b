"""It allocates to find out what it can serve."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.why_not"


class Plugin(Right):
    @classmethod
    def why_not(cls, spec):
        torch.zeros(spec.q_heads, spec.head_dim, dtype=spec.dtype)  # what it should not do
        return super().why_not(spec)
