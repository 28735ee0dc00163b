"""Positions are counted anew in each step."""

from __future__ import annotations

from wrong_plugins.models.right import CONTEXT, Family, Right

BREAKS = "model.chunks_equal_the_whole"


class Wrong(Right):
    def positions(self, batch):
        import torch

        index = torch.arange(batch.padded_tokens, device=batch.tokens.device)
        return (index - batch.q_start[batch.q_row]).clamp(max=CONTEXT - 1)


class Plugin(Family):
    model = Wrong
