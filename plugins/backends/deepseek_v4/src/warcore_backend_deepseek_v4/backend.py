"""The backend: where each kind of step reads what is shared, and what it declares of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs
import torch

from warcore import AttentionBackend, ForwardMode, GraphKind, SharedReadEnds
from warcore_backend_deepseek_v4.chunk import STAGED, ChunkCache
from warcore_backend_deepseek_v4.dense import Dense
from warcore_backend_deepseek_v4.groups import Tokens, Trees
from warcore_backend_deepseek_v4.lookups import Table
from warcore_backend_deepseek_v4.source import Anew, Source, Statics

if TYPE_CHECKING:
    from warcore import AttentionSpec, BackendContext, ForwardBatch, Layer
    from warcore_backend_deepseek_v4.lookups import Lookup, Memory

READS: Final = {
    ForwardMode.EXTEND: SharedReadEnds.UNKNOWN,
    ForwardMode.DECODE: SharedReadEnds.IN_REPLAY,
    ForwardMode.TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
    ForwardMode.DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
    ForwardMode.MIXED: SharedReadEnds.UNKNOWN,
}
PREFILL: Final = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})
DTYPES: Final = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64})
STEP: Final = 8
"""Eager steps look up a multiple of so many positions."""
SMALLEST: Final = 128
"""Captured steps look up a power of two, at least this: each length costs a capture."""


@attrs.frozen
class Options:
    """`--opt deepseek_v4.KEY=VALUE`."""

    sparse_above: int = attrs.field(default=256, validator=attrs.validators.ge(0))
    """A prefill step of more tokens, padding included, is sparse: over a chunk cache, in blocks."""


class DeepseekV4(AttentionBackend):
    """Serves models with sliding windows, on any device that torch serves, with any page size.

    Layers with a window load the window and no more. A step has one lookup, which all its layers
    share; this class says when it is read.
    """

    Options: ClassVar[type] = Options
    window_pool: ClassVar[bool] = True
    # The reference comes first where both can serve: this one is asked for by its name.
    default_rank: ClassVar[int] = -1

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:
        """Models without windows, and what torch's attention does not take."""
        reasons = []
        if spec.role == "target" and spec.windows == {None}:
            reasons.append("a model without sliding windows (a layer with one is what it is for)")
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
        """Take the tables: int32 for each position of each row of the largest batch, once for each
        kind of layer.
        """
        super().__init__(ctx)
        assert isinstance(ctx.options, Options)
        self._sparse_above = ctx.options.sparse_above
        self._source = Source(ctx)
        self._statics, self._anew = Statics(ctx, self._source), Anew(ctx)
        # For each request a place, and for each block, of which a token may be one, two words.
        ctx.static(STAGED, (ctx.max_batch + 2 * ctx.max_tokens,), torch.int64)
        self._lookup: Lookup | None = None
        """Of the step; None: the first layer makes it."""

    # ---- what it declares ------------------------------------------------------------------------

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """Where the lookup of a step of this mode is read; of an EXTEND step the snapshot says."""
        return SharedReadEnds.POST_REPLAY if self._is_late(forward_mode) else READS[forward_mode]

    def _is_late(self, mode: ForwardMode) -> bool:
        """Whether the first layer looks up, behind the marker of a graph that is broken there."""
        return mode is ForwardMode.TARGET_VERIFY and self.ctx.graph is GraphKind.BREAKABLE

    def prepare_prefill_shared_read_snapshot(
        self, forward_batch: ForwardBatch, num_qo_tokens: int
    ) -> SharedReadEnds:
        """Build the chunk cache of a sparse step, if it is one; a dense one has read everything."""
        if num_qo_tokens > self._sparse_above:
            self._lookup = self._chunk_cache(forward_batch, num_qo_tokens)
        return SharedReadEnds.PRE_REPLAY

    def graph_key(self, batch: ForwardBatch) -> int | None:
        """The positions that a captured step looks up: a power of two from 128.

        A prefill in an unbroken graph has to be dense and of one request: the host cuts the others,
        and a capture of one cut is no other's.
        """
        cut = batch.size > 1 or self._is_sparse(batch)
        if batch.mode in PREFILL and self.ctx.graph is GraphKind.UNBROKEN and cut:
            return None
        longest = max(batch.max_seq_len, SMALLEST)
        return min(1 << (longest - 1).bit_length(), self.ctx.spec.max_context)

    # ---- a step ----------------------------------------------------------------------------------

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Dense prefills: the last shared read. What a layer looks up has not been looked up."""
        self._lookup = None
        if not self._is_sparse(batch) and not self._is_late(batch.mode):
            table = self._lookup = self._table(batch, self._statics, batch.padded_size)
            if batch.mode in PREFILL:
                table.read()

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """The modes that are declared so: the last shared read."""
        lookup = self._lookup
        if lookup is not None:
            lookup.forget()
        # NOTE: only these. A first layer's lookup may be here too, from before a capture, and what
        # a graph writes to has to outlive the step.
        if self.shared_read_ends(batch.mode) is SharedReadEnds.IN_REPLAY:
            assert isinstance(lookup, Table)
            lookup.read()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store k and v, attend to what the step has looked up. No host sync."""
        if self._lookup is None:
            self._lookup = self._looked_up(batch)
        memory = self.ctx.kv[layer.index]
        keys = memory["k"].view(-1, layer.kv_heads, layer.head_dim)
        values = memory["v"].view(-1, layer.kv_heads, layer.head_dim)
        out = self._lookup.out
        slots = batch.out_slots if layer.window is None or out is None else out
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)
        return self._lookup.attend(q, (keys, values), layer)

    # ---- its lookup ------------------------------------------------------------------------------

    def _is_sparse(self, batch: ForwardBatch) -> bool:
        return batch.mode in PREFILL and batch.padded_tokens > self._sparse_above

    def _length(self, batch: ForwardBatch) -> int:
        """Positions that a step looks up; eager, each costs time, and a view's are its bucket's."""
        longest = max(batch.max_seq_len, 1)
        step = STEP if batch.bucket is None else 1
        return min(-(-longest // step) * step, self.ctx.spec.max_context)

    def _looked_up(self, batch: ForwardBatch) -> Lookup:
        """In the first layer: what nobody has looked up before."""
        if batch.mode in PREFILL:
            return self._chunk_cache(batch, batch.padded_tokens)
        # Padding need not be looked up here, but a chain's tokens are counted on the device.
        rows = batch.padded_size if batch.tree_mask is None else batch.size
        table = self._table(batch, self._anew, rows)
        table.read()
        return table

    def _chunk_cache(self, batch: ForwardBatch, tokens: int) -> ChunkCache:
        return ChunkCache(batch, tokens, self._length(batch), self._source, self.ctx.stage)

    def _table(self, batch: ForwardBatch, memory: Memory, rows: int) -> Table:
        """Not read yet. rows: requests to look up."""
        if batch.mode in PREFILL:
            kind: type[Table] = Dense
        else:
            kind = Tokens if batch.tree_mask is None else Trees
        return kind(batch, self._length(batch), self._source, memory, rows=rows)
