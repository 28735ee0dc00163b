"""It ends the process that imports it."""

from __future__ import annotations

import os

from warcore import AttentionBackend

os._exit(3)


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
