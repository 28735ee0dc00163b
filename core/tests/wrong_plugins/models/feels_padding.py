"""Padding sways the tokens before it."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.rows_do_not_touch"


class Wrong(Right):
    def embed(self, batch):
        padded = bool(batch.extend_lens) and batch.padded_tokens > sum(batch.extend_lens)
        return super().embed(batch) + 0.1 * padded


class Plugin(Family):
    model = Wrong
