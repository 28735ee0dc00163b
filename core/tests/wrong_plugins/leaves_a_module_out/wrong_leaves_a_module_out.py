"""Its wheel lacks a module."""

from __future__ import annotations

from wrong_leaves_a_module_out_kernels import KERNELS

from warcore import AttentionBackend


class Wrong(AttentionBackend):
    """Writes keys and values nowhere: the checks of its package ask for no more."""

    kernels = KERNELS

    def forward(self, q, k, v, layer, batch):
        return q
