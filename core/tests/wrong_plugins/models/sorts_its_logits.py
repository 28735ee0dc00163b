"""Logits come in the order of the tokens."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.logits_at_is_respected"


class Wrong(Right):
    def select(self, x, batch):
        if batch.logits_at is None:
            return x
        return x.index_select(0, batch.logits_at.sort().values)


class Plugin(Family):
    model = Wrong
