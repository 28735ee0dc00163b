"""It gives the stream before a layer for the one after it."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.hidden_states_are_those_asked_for"


class Wrong(Right):
    def kept(self, before, after):
        return before


class Plugin(Family):
    model = Wrong
