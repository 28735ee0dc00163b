"""A request in company is not what it is alone."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.rows_do_not_touch"


class Wrong(Right):
    def embed(self, batch):
        return super().embed(batch) * (1 + 0.1 * (batch.size - 1))


class Plugin(Family):
    model = Wrong
