"""It takes every reference for its own."""

from __future__ import annotations

from wrong_plugins.models.right import Family

BREAKS = "model.recognises_any_text"


class Plugin(Family):
    @classmethod
    def recognises(cls, ref):
        return ref or None
