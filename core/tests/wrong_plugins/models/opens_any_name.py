"""It takes every reference for a file."""

from __future__ import annotations

from pathlib import Path

from wrong_plugins.models.right import Family

BREAKS = "model.recognises_any_text"


class Plugin(Family):
    @classmethod
    def recognises(cls, ref):
        if ref == "Plugin":
            return ref
        return ref if Path(ref).read_bytes()[:4] == b"GGUF" else None
