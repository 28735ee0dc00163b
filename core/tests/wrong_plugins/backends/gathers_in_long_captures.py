"""Its captures of longer sequences, which have a key of their own, gather in their layers."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def graph_key(self, batch):
        return None if batch.mode.is_prefill else int(batch.max_seq_len > 16)

    def forward(self, q, k, v, layer, batch):
        if batch.bucket is not None and batch.bucket.key:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
