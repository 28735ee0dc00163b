"""One of its options has no default."""

from __future__ import annotations

import attrs

from warcore import AttentionBackend


@attrs.frozen
class Options:
    """Its options."""

    splits: int


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    Options = Options

    def forward(self, q, k, v, layer, batch):
        return q
