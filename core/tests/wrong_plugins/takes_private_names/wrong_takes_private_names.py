"""It reaches into the core."""

from __future__ import annotations

from warcore import AttentionBackend
from warcore.contract import ForwardMode

MODES = frozenset(ForwardMode)


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
