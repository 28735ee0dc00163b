"""It leaves torch as a CUDA context would."""

from __future__ import annotations

import torch

from warcore import AttentionBackend

torch.cuda._initialized = True


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
