"""Attention backends: what they are given, what a step shows them, and what they declare.

One rule carries the contract: **`ctx.shared` is live, everything in `batch` is private to the
step.** A backend says where its last read of `ctx.shared` ends; the core fences there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import attrs

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.options import NoOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from warcore.batch import ForwardBatch
    from warcore.model import Layer
    from warcore.shared import SharedTables


@attrs.frozen
class TensorSpec:
    """Shape and dtype of memory that the core allocates for a plugin."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@attrs.frozen
class AttentionSpec:
    """What a backend would have to serve; `why_not` judges it before anything is allocated."""

    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    page_size: int
    max_context: int
    windows: frozenset[int | None]
    """The windows of the model's layers in tokens; None stands for full attention."""
    tree: bool
    """Whether verify batches carry a tree mask."""
    device: torch.device
    role: str
    """"target" or "draft"."""


@attrs.frozen(eq=False)
class BackendContext:
    """What a backend is built from. Fields are only ever added; authors never build one."""

    spec: AttentionSpec
    max_batch: int
    """Upper bound of B, padding included."""
    max_tokens: int
    """Upper bound of T, padding included."""
    shared: SharedTables
    """LIVE: reading it after the declared end is the mistake that this project exists for."""
    kv: Sequence[Mapping[str, torch.Tensor]]
    """kv[layer][name]: [pages, *shape] of `kv_cache`. The core owns it.

    Where `shared.full_to_swa` is there, layers with a window have fewer pages, those of the window
    pool, and their slots are the map's values.
    """
    graph: GraphKind
    options: object
    static: Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
    """static(name, shape, dtype): zeroed memory, one address for life; same name, same memory."""
    stage: Callable[[str, Sequence[int]], torch.Tensor]
    """stage(name, values): host values into the front of static `name`, through the fenced ring."""


class AttentionBackend(ABC):
    """The plugin kind `backend`. One instance per ModelRunner; all methods run in stream order."""

    page_sizes: ClassVar[frozenset[int] | None] = None
    """Tokens per page that it can serve; None: any."""
    window_pool: ClassVar[bool] = False
    """Whether it finds the keys and values of layers with a window through `full_to_swa`, if there
    is such a map; it is None for models without windows, and for drafts.

    Reading the map is a shared read as any other. Where it is given, a window layer's slot of
    position p is `full_to_swa[req_to_token[row, p]]`, its place to write `full_to_swa[out_slots]`,
    and a position behind the window of all of a request's tokens has no slot of its own: it leads
    to the padding page, whose numbers are nobody's.
    """
    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:  # noqa: ARG003
        """Every reason why it cannot serve `spec`; [] if it can. Allocates nothing."""
        return []

    @classmethod
    def kv_cache(cls, spec: AttentionSpec) -> dict[str, TensorSpec]:
        """One page of one layer. The default: k and v, [page_size, kv_heads, head_dim]."""
        shape = (spec.page_size, spec.kv_heads, spec.head_dim)
        return {name: TensorSpec(shape, spec.kv_dtype) for name in ("k", "v")}

    def __init__(self, ctx: BackendContext) -> None:
        """Take static buffers from `ctx`; read nothing shared."""
        self.ctx = ctx

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:  # noqa: B027
        """Before the replay, once a step. Host work is allowed; may read `ctx.shared`.

        What it leaves for the captured part goes into memory from `ctx.static`, in place: a replay
        reads the addresses, and knows the Python values, of its capture.
        """

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:  # noqa: B027
        """Recorded. No host sync, no data-dependent shape; may read `ctx.shared`.

        A replay does not call it. What it leaves in Python for `forward` belongs to the step that
        `batch.bucket` names: where `ctx.graph` is BREAKABLE, `forward` runs again at each replay.
        """

    @abstractmethod
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Write k, v [T, kv_heads, D] at `batch.out_slots`; attend q [T, q_heads, D] over the rest.

        Returns [T, q_heads, D]. A token sees the positions of its own request up to its own, and
        no further back than `layer.window`. May not read `ctx.shared` unless the backend declares
        POST_REPLAY or UNKNOWN for this mode. Output of a live token never depends on padding.
        """

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """Where the last read of `ctx.shared` ends. Pure, total, asked at wiring.

        The default follows from the metadata contract: decode and verify read in the two metadata
        methods only; nothing is known of the other modes.
        """
        if forward_mode in {ForwardMode.DECODE, ForwardMode.TARGET_VERIFY}:
            return SharedReadEnds.IN_REPLAY
        return SharedReadEnds.UNKNOWN

    def prepare_prefill_shared_read_snapshot(
        self,
        forward_batch: ForwardBatch,  # noqa: ARG002
        num_qo_tokens: int,  # noqa: ARG002
    ) -> SharedReadEnds | None:
        """EXTEND only: copy what the layers would read later. None keeps the static vote."""
        return None

    def graph_key(self, batch: ForwardBatch) -> int | None:  # noqa: ARG002
        """What besides mode, B and T tells captured steps apart; None: run this batch eagerly.

        Asked of every batch before it runs, and at wiring for every `max_seq_len`: a backend whose
        work grows with the sequences answers by length bucket, so that a replay over short ones
        does not pay for the whole context. Batches that differ in `max_seq_len` alone and have one
        key must be neighbours. The view of a captured step has the bucket's largest `max_seq_len`.
        """
        return 0
