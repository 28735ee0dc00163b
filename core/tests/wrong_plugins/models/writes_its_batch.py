"""It uses the tokens of the batch as memory of its own."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.forward_is_pure"


class Wrong(Right):
    def embed(self, batch):
        x = super().embed(batch)
        batch.tokens.zero_()
        return x


class Plugin(Family):
    model = Wrong
