"""It brings the rows to the host in each step."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.forward_never_waits"


class Wrong(Right):
    def embed(self, batch):
        assert batch.rows.tolist()
        return super().embed(batch)


class Plugin(Family):
    model = Wrong
