"""It turns a switch of somebody else's."""

from __future__ import annotations

import os

from warcore import AttentionBackend

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
