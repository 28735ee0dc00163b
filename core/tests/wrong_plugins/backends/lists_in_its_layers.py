"""Its layers bring the lengths to the host."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.captures"


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        assert len(batch.seq_lens.tolist()) == batch.padded_size  # a host read
        return super().forward(q, k, v, layer, batch)
