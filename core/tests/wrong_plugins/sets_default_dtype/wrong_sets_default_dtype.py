"""It wants every tensor of the process in another dtype."""

from __future__ import annotations

import torch

from warcore import AttentionBackend

torch.set_default_dtype(torch.float64)


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
