"""A little of every slot is in its outputs, whoever's it is."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.padding"
DETECTORS = ("poison",)


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        values = self.ctx.kv[layer.index]["v"].flatten(0, 1).double()
        every = values.nan_to_num(3).mean().to(out.dtype)
        return out + 1e-6 * every
