"""Its last layer attends twice."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.describe_agrees_with_load"


class Wrong(Right):
    def layer(self, index, x, attend):
        after = super().layer(index, x, attend)
        return super().layer(index, after, attend) if index == 2 else after


class Plugin(Family):
    model = Wrong
