"""Each layer writes over the stream that was kept."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.hidden_states_are_those_asked_for"


class Wrong(Right):
    def layer(self, index, x, attend):
        return x.copy_(super().layer(index, x, attend))


class Plugin(Family):
    model = Wrong
