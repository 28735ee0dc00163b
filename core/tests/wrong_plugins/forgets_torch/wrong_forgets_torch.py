"""It imports torch and does not require it."""

from __future__ import annotations

from warcore import AttentionBackend


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q

    def shared_read_ends(self, forward_mode):
        import torch

        return super().shared_read_ends(torch.jit.annotate(object, forward_mode))
