"""A backend of the kit's own, for checks of what stands around backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from warcore.backend import AttentionBackend
from warcore.contract import ForwardMode, SharedReadEnds

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.model import Layer


class Paged(AttentionBackend):
    """Dense attention over gathered slots. It reads the table where `vote` says, in every mode.

    All that a step remembers lies in static memory, so that replays find it.
    """

    vote: ClassVar[SharedReadEnds] = SharedReadEnds.PRE_REPLAY

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """The class's own."""
        early = forward_mode.is_prefill and self.vote is SharedReadEnds.IN_REPLAY
        return SharedReadEnds.PRE_REPLAY if early else self.vote

    def graph_key(self, batch: ForwardBatch) -> int | None:
        """One capture serves every length; batches of several prefills are split by the host."""
        return None if batch.mode.is_prefill and batch.size > 1 else 0

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """The read of PRE_REPLAY."""
        if self.shared_read_ends(batch.mode) is SharedReadEnds.PRE_REPLAY:
            self._gather(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """The read of IN_REPLAY."""
        if self.shared_read_ends(batch.mode) is SharedReadEnds.IN_REPLAY:
            self._gather(batch)

    def slots(self, batch: ForwardBatch) -> torch.Tensor:
        """[B, context] i64: what was gathered."""
        size = self.ctx.max_batch, self.ctx.shared.req_to_token.shape[1]
        return self.ctx.static("paged.slots", size, torch.int64)[: batch.padded_size]

    def _gather(self, batch: ForwardBatch) -> None:
        self.slots(batch).copy_(self.ctx.shared.req_to_token.index_select(0, batch.rows))

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """The read of POST_REPLAY and UNKNOWN. A token sees its own request up to itself."""
        if self.shared_read_ends(batch.mode) >= SharedReadEnds.POST_REPLAY:
            self._gather(batch)
        cache = self.ctx.kv[layer.index]
        keys, values = cache["k"].flatten(0, 1), cache["v"].flatten(0, 1)
        keys.index_copy_(0, batch.out_slots, k)
        values.index_copy_(0, batch.out_slots, v)
        slots = self.slots(batch).index_select(0, batch.q_row)
        at = torch.arange(slots.shape[1], device=q.device)
        seen = at <= batch.positions[:, None]
        # What a token does not see may be NaN: look at its own in its place.
        slots = torch.where(seen, slots, batch.out_slots[:, None])
        group = layer.q_heads // layer.kv_heads
        k, v = (memory[slots].repeat_interleave(group, 2) for memory in (keys, values))
        scores = torch.einsum("thd,tlhd->thl", q, k) * layer.scale
        scores = scores.masked_fill(~seen[:, None], float("-inf"))
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), v)


def paged(vote: SharedReadEnds) -> Any:
    """The class that reads, and says that it reads, where `vote` says."""
    return type(f"Paged{vote.name.title().replace('_', '')}", (Paged,), {"vote": vote})
