"""No token ends its answers."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.tokenizer_is_sane"


class Wrong(Right):
    def __init__(self, info, dtype):
        super().__init__(info, dtype)
        self.tokenizer.eos_ids = frozenset()


class Plugin(Family):
    model = Wrong
