"""It selects tokens by a mask, so that a size depends on values."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.forward_never_waits"


class Wrong(Right):
    def embed(self, batch):
        return super().embed(batch)[batch.positions >= 0]


class Plugin(Family):
    model = Wrong
