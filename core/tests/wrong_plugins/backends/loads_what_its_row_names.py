"""It loads all that the row names up to the end of the drafts, and hides what nobody owns."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Windowed

BREAKS = "backend.drafts_without_slots"
DETECTORS = ("poison",)


class Plugin(Windowed):
    def forward(self, q, k, v, layer, batch):
        keys, values = (self.ctx.kv[layer.index][name].flatten(0, 1) for name in "kv")
        self.store(keys, values, k, v, batch)
        slots = self.slots(batch)[batch.q_row]
        at = torch.arange(slots.shape[1], device=slots.device)
        there = at < batch.seq_lens[batch.q_row][:, None]
        loaded = torch.where(there, slots, batch.out_slots[:, None])
        seen = self.seen(slots, layer, batch)
        return self.attend(q, keys[loaded], values[loaded], seen, layer)
