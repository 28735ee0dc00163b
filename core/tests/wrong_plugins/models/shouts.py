"""Text comes back in capitals."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.tokenizer_is_sane"


class Wrong(Right):
    def __init__(self, info, dtype):
        super().__init__(info, dtype)
        encode = self.tokenizer.encode
        self.tokenizer.encode = lambda text: encode(text.upper())


class Plugin(Family):
    model = Wrong
