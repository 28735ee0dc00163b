"""Its reasons are one text, which is a list of letters."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.why_not"


class Plugin(Right):
    @classmethod
    def why_not(cls, spec):
        return "windows or trees" if super().why_not(spec) else ""
