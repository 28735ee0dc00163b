"""It tiles KV heads over query heads where it should repeat each."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.serves"


class Plugin(Right):
    def spread(self, each, layer):
        return each.repeat(1, 1, layer.q_heads // layer.kv_heads, 1)
