"""It takes one core and leaves the others to nobody."""

from __future__ import annotations

import torch

from warcore import AttentionBackend

torch.set_num_threads(torch.get_num_threads() + 1)


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
