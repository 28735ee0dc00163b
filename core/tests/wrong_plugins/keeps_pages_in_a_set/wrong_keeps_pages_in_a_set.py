"""Its page sizes are a set that anybody may change."""

from __future__ import annotations

from warcore import AttentionBackend


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    page_sizes = {4, 16}  # noqa: RUF012 - what is wrong with it

    def forward(self, q, k, v, layer, batch):
        return q
