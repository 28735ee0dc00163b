"""Splits the keys of decodes above 128 tokens, and looks their pages up in its layers."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import ForwardMode

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.mode is ForwardMode.DECODE and batch.max_seq_len > 128:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
