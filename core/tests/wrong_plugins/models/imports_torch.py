"""Whoever asks for its name waits for torch."""

from __future__ import annotations

import torch
from wrong_plugins.models.right import Family

BREAKS = "model.recognises_is_cheap"


class Plugin(Family):
    @classmethod
    def recognises(cls, ref):
        return super().recognises(str(torch.Size([1]) and ref))
