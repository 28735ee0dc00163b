"""It answers a hook that only algorithms answer."""

from __future__ import annotations

from warcore import AttentionBackend


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q

    def last_shared_read_runner(self, forward_batch):
        return None
