"""What a token does not see it multiplies by 0, and 0 times NaN is NaN."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.parity"


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        values = self.ctx.kv[layer.index]["v"].flatten(0, 1)
        return out + 0 * values[-1].repeat_interleave(layer.q_heads // layer.kv_heads, 0)
