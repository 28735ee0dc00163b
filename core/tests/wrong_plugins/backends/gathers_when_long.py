"""Above a size that small tests never reach it gathers in its first layer."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import ForwardMode

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.mode is ForwardMode.EXTEND and batch.max_seq_len > 40 and not layer.index:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
