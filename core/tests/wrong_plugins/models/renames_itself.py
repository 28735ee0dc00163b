"""It does not know the name that it gives."""

from __future__ import annotations

from wrong_plugins.models.right import Family

BREAKS = "model.recognises_any_text"


class Plugin(Family):
    @classmethod
    def recognises(cls, ref):
        return "plugin:1" if ref == "Plugin" else None
