"""It copies where keys go of live tokens only: padding writes where a larger batch wrote."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.replays"


class Plugin(Right):
    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        live = batch.padded_tokens
        if not batch.mode.is_prefill:
            live = batch.size * (batch.padded_tokens // batch.padded_size)
        self.places(batch)[:live].copy_(batch.out_slots[:live])

    def places(self, batch):
        """Of a captured step of this mode, in static memory."""
        if batch.bucket is None:
            return batch.out_slots
        places = self.ctx.static(f"places.{batch.mode.value}", (64,), torch.int64)
        return places[: batch.padded_tokens]

    def store(self, keys, values, k, v, batch):
        places = self.places(batch)
        keys[places], values[places] = k, v
