"""It has neither a summary nor a README."""

from __future__ import annotations

from warcore import AttentionBackend


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
