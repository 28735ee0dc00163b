"""The backend: where it reads what is shared, and attention over what it gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs
import torch
from torch.nn.functional import scaled_dot_product_attention

from warcore import AttentionBackend, ForwardMode, GraphKind, SharedReadEnds
from warcore_backend_torch_native.masks import score_mask

if TYPE_CHECKING:
    from warcore import AttentionSpec, BackendContext, Bucket, ForwardBatch, Layer

    Cache = tuple[torch.Tensor, torch.Tensor]

READS: Final = {
    ForwardMode.EXTEND: SharedReadEnds.PRE_REPLAY,
    ForwardMode.DECODE: SharedReadEnds.IN_REPLAY,
    ForwardMode.TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
    ForwardMode.DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
    ForwardMode.MIXED: SharedReadEnds.UNKNOWN,
}
PREFILL: Final = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})
DTYPES: Final = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64})
STEP: Final = 8
"""Eager steps gather a multiple of so many positions."""
SMALLEST: Final = 128
"""Captured steps gather a power of two, at least this: each length costs a capture."""


@attrs.frozen(eq=False)
class Metadata:
    """What the layers of one step share."""

    slots: torch.Tensor
    """[B, L] i32, the slot of each position; past a sequence's end its last one, again."""
    masks: dict[int | None, torch.Tensor]
    """By window: [T, L] for prefills, else [B, 1, N, L] with N query rows for each request."""
    spread: torch.Tensor | None
    """[B, N] i64, the tokens that are each request's query rows; None: token b is request b's."""
    places: torch.Tensor | None
    """[T] i64, where in the B * N query rows each token is; None with `spread`."""
    swa_slots: torch.Tensor | None
    """As `slots`, in the window pool; what no token of the step may see repeats the first position
    that one may. None: layers with a window use `slots`."""
    swa_out: torch.Tensor | None
    """[T] i64, the slots of the window pool to write."""


class TorchNative(AttentionBackend):
    """Serves every mode on any device that torch serves, with any page size.

    Each layer copies the keys and values of each request up to a length bucket and calls torch's
    scaled dot-product attention, for all requests at once, or one by one in a prefill.
    """

    window_pool: ClassVar[bool] = True

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:
        """Element types and head counts that torch's attention does not take."""
        reasons = []
        if spec.dtype not in DTYPES:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in DTYPES))
            reasons.append(f"{spec.dtype} (it computes in {names})")
        if spec.kv_dtype != spec.dtype:
            reasons.append(
                f"a {spec.kv_dtype} cache for a {spec.dtype} model (it converts nothing)"
            )
        if spec.q_heads % spec.kv_heads:
            reasons.append(f"{spec.q_heads} query heads over {spec.kv_heads} KV heads")
        return reasons

    def __init__(self, ctx: BackendContext) -> None:
        """Take the slot table: int32 for each position of each row of the largest batch.

        Another one where layers with a window have a pool of their own.
        """
        super().__init__(ctx)
        size = (ctx.max_batch * ctx.spec.max_context,)
        self._slots = ctx.static("torch_native.slots", size, torch.int32)
        self._swa_slots = self._swa_out = None
        if ctx.shared.full_to_swa is not None:
            self._window = max(window for window in ctx.spec.windows if window is not None)
            self._swa_slots = ctx.static("torch_native.swa_slots", size, torch.int32)
            self._swa_out = ctx.static("torch_native.swa_out", (ctx.max_tokens,), torch.int64)
        self._columns = torch.arange(ctx.spec.max_context, device=ctx.spec.device)
        self._captured: dict[Bucket, Metadata] = {}

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """Shared buffers are read by `_gather_slots` alone; this is where each mode calls it."""
        return READS[forward_mode]

    def graph_key(self, batch: ForwardBatch) -> int | None:
        """The KV length that a captured step gathers: a power of two from 128.

        A batch of prefills runs eagerly: the host splits it into requests, and a capture of one
        split is no other's.
        """
        if batch.mode in PREFILL and batch.size > 1:
            return None
        longest = max(batch.max_seq_len, SMALLEST)
        return min(1 << (longest - 1).bit_length(), self.ctx.spec.max_context)

    def _length(self, batch: ForwardBatch) -> int:
        """The KV length L that a step gathers. Eager, each position costs time; a view's is its
        bucket's.
        """
        longest = max(batch.max_seq_len, 1)
        step = STEP if batch.bucket is None else 1
        return min(-(-longest // step) * step, self.ctx.spec.max_context)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Prefills: the last shared read."""
        if batch.mode in PREFILL:
            self._gather_slots(batch)
        if batch.bucket in self._captured:
            self._metadata = self._captured[batch.bucket]

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """The other modes: the last shared read. Then masks, from what is private anyway."""
        length = self._length(batch)
        slots = self._table(self._slots, batch, length)
        swa_slots = swa_out = None
        if self._swa_slots is not None and self._swa_out is not None:
            swa_slots = self._table(self._swa_slots, batch, length)
            swa_out = self._swa_out[: batch.padded_tokens]
        if batch.mode not in PREFILL:
            self._gather_slots(batch)
        spread, places = self._spread(batch)
        masks = {}
        for window in self.ctx.spec.windows:
            mask = score_mask(batch, self._columns[:length], window, self.ctx.spec.dtype)
            if batch.mode not in PREFILL:
                mask = (mask[:, None] if spread is None else mask[spread])[:, None]
            masks[window] = mask
        self._metadata = Metadata(slots, masks, spread, places, swa_slots, swa_out)
        if batch.bucket is not None and self.ctx.graph is GraphKind.BREAKABLE:
            # A replay fills these again, and `forward` runs between two of its segments.
            self._captured[batch.bucket] = self._metadata

    @staticmethod
    def _table(memory: torch.Tensor, batch: ForwardBatch, length: int) -> torch.Tensor:
        return memory[: batch.padded_size * length].view(batch.padded_size, length)

    def _gather_slots(self, batch: ForwardBatch) -> None:
        """Copy the slots of every sequence in the batch: the only reader of `ctx.shared`.

        Past the end the last position repeats. NOTE: a masked score has weight 0, and 0 times the
        NaN of a slot that nobody owns is NaN; a request may only ever load its own slots.
        """
        length = self._length(batch)
        last = (batch.seq_lens[:, None] - 1).clamp(min=0)
        at = torch.minimum(self._columns[:length], last)
        slots = self._table(self._slots, batch, length)
        slots.copy_(self.ctx.shared.req_to_token[batch.rows[:, None], at])
        swa = self.ctx.shared.full_to_swa
        if swa is None or self._swa_slots is None or self._swa_out is None:
            return
        # Behind every window a request has no slot of its own any more, and loads no other.
        first = batch.seq_lens[:, None] - (batch.q_start[1:] - batch.q_start[:-1])[:, None]
        at = torch.minimum(torch.maximum(at, first - self._window + 1), last)
        swa_slots = self._table(self._swa_slots, batch, length)
        swa_slots.copy_(swa[slots.gather(1, at.long())])
        self._swa_out[: batch.padded_tokens].copy_(swa[batch.out_slots])

    @staticmethod
    def _spread(batch: ForwardBatch) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """How tokens become [B, N] query rows and come back; N bounds one request's tokens.

        Lengths live on the device and may differ from those at capture. Rows beyond a request's
        tokens repeat other tokens, and nobody takes them.
        """
        if batch.mode in PREFILL or batch.mode is ForwardMode.DECODE:
            return None, None
        width = batch.max_q_len
        steps = torch.arange(width, device=batch.q_start.device)
        spread = (batch.q_start[:-1, None] + steps).clamp(max=batch.padded_tokens - 1)
        tokens = torch.arange(batch.padded_tokens, device=batch.q_start.device)
        nth = (tokens - batch.q_start[batch.q_row]).clamp(0, width - 1)
        return spread, batch.q_row * width + nth

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store k and v, load each request's own up to L, attend. No host sync."""
        memory = self.ctx.kv[layer.index]
        keys = memory["k"].view(-1, layer.kv_heads, layer.head_dim)
        values = memory["v"].view(-1, layer.kv_heads, layer.head_dim)
        swa_out = self._metadata.swa_out
        out = batch.out_slots if layer.window is None or swa_out is None else swa_out
        keys.index_copy_(0, out, k)
        values.index_copy_(0, out, v)
        if batch.mode in PREFILL:
            return self._one_by_one(q, (keys, values), layer, batch.extend_lens)
        return self._together(q, (keys, values), layer)

    def _together(self, q: torch.Tensor, cache: Cache, layer: Layer) -> torch.Tensor:
        """All requests in one call, with N query rows each."""
        meta = self._metadata
        table, mask = _slots(meta, layer), meta.masks[layer.window]
        if meta.spread is None or meta.places is None:
            return _attend(q[:, None], cache, table, mask, layer)[:, 0]
        rows = q.index_select(0, meta.spread.flatten()).unflatten(0, meta.spread.shape)
        out = _attend(rows, cache, table, mask, layer)
        return out.flatten(0, 1).index_select(0, meta.places)

    def _one_by_one(
        self, q: torch.Tensor, cache: Cache, layer: Layer, extend_lens: tuple[int, ...]
    ) -> torch.Tensor:
        """One call for each request: ragged lengths are not padded to the longest."""
        meta, start = self._metadata, 0
        table, mask = _slots(meta, layer), meta.masks[layer.window]
        out = torch.zeros_like(q)
        for row, count in enumerate(extend_lens):
            part = slice(start, start + count)
            slots = table[row : row + 1]
            out[part] = _attend(q[None, part], cache, slots, mask[part], layer)[0]
            start += count
        return out


def _slots(meta: Metadata, layer: Layer) -> torch.Tensor:
    """[B, L] i32, in the pool of `layer`."""
    return meta.slots if layer.window is None or meta.swa_slots is None else meta.swa_slots


def _attend(
    q: torch.Tensor, cache: Cache, slots: torch.Tensor, mask: torch.Tensor, layer: Layer
) -> torch.Tensor:
    """Attention of q [B, N, q_heads, D] over slots [B, L] of the flat cache; shaped like q."""
    flat, shape = slots.view(-1), (*slots.shape, layer.kv_heads, layer.head_dim)
    k = cache[0].index_select(0, flat).view(shape)
    v = cache[1].index_select(0, flat).view(shape)
    return scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        scale=layer.scale,
        enable_gqa=layer.q_heads != layer.kv_heads,
    ).transpose(1, 2)
