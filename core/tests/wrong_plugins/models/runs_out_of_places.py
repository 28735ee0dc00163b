"""Its table of positions ends in the middle of the context, and the rest share the last one."""

from __future__ import annotations

from wrong_plugins.models.right import CONTEXT, Family, Right

BREAKS = "model.places_differ"


class Wrong(Right):
    def positions(self, batch):
        return batch.positions.clamp(max=CONTEXT // 2 - 1)


class Plugin(Family):
    model = Wrong
