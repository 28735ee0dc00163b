"""Stages up to 32 tokens, which its buffer holds, and says True of all."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.true_is_true"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def stage(self, batch):
        return batch.padded_tokens > 32 or super().stage(batch)
