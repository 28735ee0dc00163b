"""The backend: where it reads what is shared, and attention over what it copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import torch

from warcore import AttentionBackend, ForwardMode, SharedReadEnds
from warcore_backend_triton.interpreter import why_not
from warcore_backend_triton.tiling import (
    CHUNK,
    LARGEST_GROUP,
    LARGEST_HEAD,
    Heads,
    Tiling,
    most_partial,
)

if TYPE_CHECKING:
    from warcore import AttentionSpec, BackendContext, ForwardBatch, Layer

READS: Final = {
    ForwardMode.EXTEND: SharedReadEnds.PRE_REPLAY,
    ForwardMode.DECODE: SharedReadEnds.IN_REPLAY,
    ForwardMode.TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
    ForwardMode.DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
    ForwardMode.MIXED: SharedReadEnds.UNKNOWN,
}
PREFILL: Final = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})
DTYPES: Final = frozenset({torch.bfloat16, torch.float16, torch.float32})


class Triton(AttentionBackend):
    """Serves every mode with kernels of its own, on a CUDA device; on a CPU in Triton's
    interpreter, which is for tests.

    A step's slots are copied once, one sequence behind the other; each layer is one launch over
    them, or two where the keys are split.
    """

    # The reference comes first where both can serve: this one is asked for by its name.
    default_rank: ClassVar[int] = -1
    window_pool: ClassVar[bool] = True

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:
        """Devices without kernels, element types, and sizes that a tile cannot hold."""
        reasons = why_not(spec.device)
        if spec.dtype == torch.float64:
            reasons.append("torch.float64 (its kernels sum in float32)")
        elif spec.dtype not in DTYPES:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in DTYPES))
            reasons.append(f"{spec.dtype} (it computes in {names})")
        if spec.kv_dtype != spec.dtype:
            reasons.append(
                f"a {spec.kv_dtype} cache for a {spec.dtype} model (it converts nothing)"
            )
        if spec.head_dim > LARGEST_HEAD:
            reasons.append(f"heads of {spec.head_dim} (up to {LARGEST_HEAD})")
        group, rest = divmod(spec.q_heads, spec.kv_heads)
        if rest:
            reasons.append(f"{spec.q_heads} query heads over {spec.kv_heads} KV heads")
        elif group > LARGEST_GROUP:
            reasons.append(f"{group} query heads over one KV head (up to {LARGEST_GROUP})")
        return reasons

    def __init__(self, ctx: BackendContext) -> None:
        """Take what a step's slots need, int32 for each position of each row of the largest batch,
        and room for the outputs of splits.
        """
        super().__init__(ctx)
        # Registers the operators, and needs Triton.
        from warcore_backend_triton import ops

        self._interpreted = ops.INTERPRETED
        self._ops = torch.ops.warcore_backend_triton
        self._width = ctx.shared.req_to_token.shape[1]
        heads = self._heads = Heads(ctx.spec.q_heads, ctx.spec.kv_heads, ctx.spec.head_dim)
        split = most_partial(heads, max_tokens=ctx.max_tokens, width=self._width) * heads.query
        self._indptr = ctx.static("triton.kv_indptr", (ctx.max_batch + 1,), torch.int64)
        size = (ctx.max_batch * self._width,)
        self._indices = ctx.static("triton.kv_indices", size, torch.int32)
        self._swa_indices = self._swa_out = None
        if ctx.shared.full_to_swa is not None:
            self._swa_indices = ctx.static("triton.swa_indices", size, torch.int32)
            self._swa_out = ctx.static("triton.swa_out", (ctx.max_tokens,), torch.int64)
        self._spans = ctx.static("triton.spans", (3 * ctx.max_tokens,), torch.int64)
        self._partial = ctx.static("triton.partial", (split * heads.dim,), torch.float32)
        self._sums = ctx.static("triton.sums", (split,), torch.float32)

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """`req_to_token` is read by `_plan` alone; this is where each mode calls it."""
        return READS[forward_mode]

    def graph_key(self, batch: ForwardBatch) -> int | None:
        """The KV length that a captured step's grid is for: 1024, four times that, and so on.

        A program beyond the end of a short sequence returns at once, so that few lengths do.
        """
        longest = CHUNK
        while longest < batch.max_seq_len:
            longest *= 4
        return min(longest, self._width)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Prefills: the last shared read."""
        if batch.mode in PREFILL:
            self._plan(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """The other modes: the last shared read."""
        if batch.mode not in PREFILL:
            self._plan(batch)

    def _longest(self, batch: ForwardBatch) -> int:
        return min(max(batch.max_seq_len, 1), self._width)

    def _plan(self, batch: ForwardBatch) -> None:
        """Copy the slots of every sequence in the batch. The only reader of `ctx.shared`."""
        self._ops.plan(
            self.ctx.shared.req_to_token,
            self.ctx.shared.full_to_swa,
            batch.rows,
            batch.seq_lens,
            batch.q_start,
            batch.q_row,
            batch.positions,
            batch.out_slots,
            self._longest(batch),
            batch.tree_mask is not None,
            self._indptr,
            self._indices,
            self._spans,
            self._swa_indices,
            self._swa_out,
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store k and v, attend over the copied slots. No host sync; padding tokens give 0."""
        memory = self.ctx.kv[layer.index]
        keys = memory["k"].view(-1, layer.kv_heads, layer.head_dim)
        values = memory["v"].view(-1, layer.kv_heads, layer.head_dim)
        out_slots, indices = batch.out_slots, self._indices
        if layer.window is not None and self._swa_out is not None:
            out_slots, indices = self._swa_out[: batch.padded_tokens], self._swa_indices
        keys.index_copy_(0, out_slots, k)
        values.index_copy_(0, out_slots, v)
        tiling = Tiling.of(
            self._heads,
            self.ctx.spec.dtype,
            batch=batch.padded_size,
            tokens=batch.padded_tokens,
            longest=self._longest(batch),
            interpreted=self._interpreted,
        )
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._ops.attend(
            q,
            keys,
            values,
            batch.q_start,
            batch.q_row,
            batch.positions,
            batch.tree_mask,
            indices,
            self._spans,
            layer.scale,
            layer.window,
            tiling.tokens,
            tiling.keys,
            tiling.splits,
            tiling.pack,
            self._partial,
            self._sums,
            out,
        )
        return out
