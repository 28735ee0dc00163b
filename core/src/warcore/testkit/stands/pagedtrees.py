"""A backend of the kit's own that sees of drafted tokens what a tree mask lets it see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore.testkit.stands.paged import Paged

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.model import Layer


class PagedTrees(Paged):
    """`Paged`, and verify steps of trees: a node sees what comes before, and its ancestors."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Nodes lie in the slots of the positions behind the sequence, in their own order."""
        if batch.tree_mask is None:
            return super().forward(q, k, v, layer, batch)
        cache = self.ctx.kv[layer.index]
        keys, values = cache["k"].flatten(0, 1), cache["v"].flatten(0, 1)
        keys.index_copy_(0, batch.out_slots, k)
        values.index_copy_(0, batch.out_slots, v)
        slots = self.slots(batch).index_select(0, batch.q_row)
        width = batch.tree_mask.shape[1]
        start = (batch.seq_lens.long() - width).index_select(0, batch.q_row)
        place = torch.arange(slots.shape[1], device=q.device) - start[:, None]
        node = batch.tree_mask.gather(1, place.clamp(0, width - 1))
        seen = (place < 0) | (node & (place < width))
        slots = torch.where(seen, slots, batch.out_slots[:, None])
        group = layer.q_heads // layer.kv_heads
        k, v = (memory[slots].repeat_interleave(group, 2) for memory in (keys, values))
        scores = torch.einsum("thd,tlhd->thl", q, k) * layer.scale
        scores = scores.masked_fill(~seen[:, None], float("-inf"))
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), v)
