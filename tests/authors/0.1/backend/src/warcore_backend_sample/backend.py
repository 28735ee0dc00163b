"""The backend: what it copies before a step begins, and attention over the copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention as attention
from warcore import AttentionBackend, SharedReadEnds

if TYPE_CHECKING:
    from warcore import AttentionSpec, BackendContext, ForwardBatch, ForwardMode, Layer


class Sample(AttentionBackend):
    """Copies its rows of the shared table once a step, and attends over the copy.

    `ctx.shared` is live: the scheduler rewrites it for the next step as soon as it may.
    Everything in `batch` is private to the step.
    """

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:
        """Every reason why it cannot serve `spec`; shown to whoever asks in vain."""
        no = {
            "tree masks (a chain of drafts needs none)": spec.tree,
            "a cache of another dtype than the model's": spec.kv_dtype != spec.dtype,
            "uneven groups of query heads": spec.q_heads % spec.kv_heads != 0,
        }
        return [reason for reason, applies in no.items() if applies]

    def __init__(self, ctx: BackendContext) -> None:
        """Take static memory, which keeps its address for life; read nothing shared."""
        super().__init__(ctx)
        width = ctx.shared.req_to_token.shape[1]
        self.slots = ctx.static("slots", (ctx.max_batch, width), torch.int32)

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """The gather below is the last read of anything shared, in every mode."""
        return SharedReadEnds.PRE_REPLAY

    def graph_key(self, batch: ForwardBatch) -> int:
        """A capture for each power of two: short sequences pay for no long ones."""
        return max(128, 1 << (batch.max_seq_len - 1).bit_length())

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Before the step's body: copy the rows of the batch out of the live table."""
        table = self.ctx.shared.req_to_token
        copies = self.slots[: batch.padded_size]
        torch.index_select(table, 0, batch.rows, out=copies)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store k and v [T, kv_heads, D]; attend q [T, q_heads, D] over the past."""
        keys, values = (self.ctx.kv[layer.index][name].flatten(0, 1) for name in "kv")
        keys[batch.out_slots], values[batch.out_slots] = k, v
        here = batch.positions[:, None]
        upto = torch.arange(batch.max_seq_len, device=q.device)
        seen = upto <= here  # [T, L]: a token sees its own past and itself
        if layer.window is not None:
            seen = seen & (upto > here - layer.window)
        slots = self.slots[batch.q_row, : batch.max_seq_len]
        # A slot that a token does not see may hold anything, NaN too, and 0 times NaN
        # is NaN: a token loads its own slot there instead.
        slots = torch.where(seen, slots, batch.out_slots[:, None])
        # [T, kv_heads, L, D]
        k, v = (cache[slots].transpose(1, 2) for cache in (keys, values))
        mask, q = seen[:, None, None], q[:, :, None]
        out = attention(q, k, v, mask, scale=layer.scale, enable_gqa=True)
        return out[:, :, 0]
