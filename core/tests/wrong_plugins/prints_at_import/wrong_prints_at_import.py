"""It greets."""

from __future__ import annotations

from warcore import AttentionBackend

print("fast kernels found")  # noqa: T201 - this is what is wrong with it


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    def forward(self, q, k, v, layer, batch):
        return q
