"""It cannot be imported."""

from __future__ import annotations

from warcore import AttentionBackend

raise RuntimeError("no such accelerator here")


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
