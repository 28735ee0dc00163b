"""The backend: which kernels serve, and where it reads what is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs
import torch

from warcore import AttentionBackend, ForwardMode, GraphKind, SharedReadEnds
from warcore_backend_trtllm_mha.providers import AUTO, PROVIDERS, provider_of, said
from warcore_backend_trtllm_mha.tables import PageTables, Tables

if TYPE_CHECKING:
    from warcore import AttentionSpec, BackendContext, Bucket, ForwardBatch, Layer

READS: Final = {
    ForwardMode.EXTEND: SharedReadEnds.PRE_REPLAY,
    ForwardMode.DECODE: SharedReadEnds.IN_REPLAY,
    ForwardMode.TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
    ForwardMode.DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
    ForwardMode.MIXED: SharedReadEnds.UNKNOWN,
}
PREFILL: Final = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})
DTYPES: Final = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64})


@attrs.frozen
class Options:
    """Of the backend, as `--opt trtllm_mha.kernels=NAME`."""

    kernels: str = AUTO
    """`auto`: the first of flashinfer, triton and torch that can serve. Or one of them."""

    def __attrs_post_init__(self) -> None:
        known = (AUTO, *PROVIDERS)
        if self.kernels not in known:
            raise ValueError(f"kernels={self.kernels} is none of {', '.join(known)}")


class TrtllmMha(AttentionBackend):
    """Serves every mode over a page table, in pages of 16, 32 or 64 tokens.

    The kernels are flashinfer's trtllm-gen where flashinfer and the GPU have them, else its own in
    Triton on a GPU, else torch's. What is read, when, and what is declared is the same for all.
    """

    page_sizes: ClassVar[frozenset[int] | None] = frozenset({16, 32, 64})
    # The reference comes first where both can serve: this one is asked for by its name.
    default_rank: ClassVar[int] = -2
    window_pool: ClassVar[bool] = True
    Options: ClassVar[type] = Options

    @classmethod
    def note(cls) -> str:
        """Which kernels serve on this machine, and why none before them."""
        return said(torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:
        """What not even torch's attention takes; it serves whatever other kernels do not."""
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
        """Choose the kernels and take static memory for the tables.

        WiringError with every reason if the kernels that were named cannot serve.
        """
        super().__init__(ctx)
        self.kernels = provider_of(ctx.spec, getattr(ctx.options, "kernels", AUTO))
        """Name of the provider that serves."""
        self._tables = PageTables(ctx)
        self._attention = PROVIDERS[self.kernels].load()(ctx, self._tables)
        self._captured: dict[Bucket, tuple[Tables, object]] = {}

    def shared_read_ends(self, forward_mode: ForwardMode) -> SharedReadEnds:
        """`PageTables.snapshot` alone reads what is shared; this is where each mode calls it."""
        return READS[forward_mode]

    def graph_key(self, batch: ForwardBatch) -> int | None:
        """The KV length that a captured step is for, as the kernels tell lengths apart."""
        return self._attention.captured_length(batch)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Prefills: the last shared read."""
        if batch.mode in PREFILL:
            self._tables.snapshot(batch)
        if batch.bucket in self._captured:
            self._step = self._captured[batch.bucket]

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """The other modes: the last shared read. Then what the kernels make of the snapshot."""
        if batch.mode not in PREFILL:
            self._tables.snapshot(batch)
        tables = self._tables.of(batch)
        self._step = tables, self._attention.plan(batch, tables)
        if batch.bucket is not None and self.ctx.graph is GraphKind.BREAKABLE:
            # A replay fills these again, and `forward` runs between two of its segments.
            self._captured[batch.bucket] = self._step

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Layer,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """Store k and v, attend over the pages of the snapshot. No host sync."""
        tables, plan = self._step
        memory = self.ctx.kv[layer.index]
        out = tables.out_of(layer, batch)
        for name, new in (("k", k), ("v", v)):
            memory[name].view(-1, layer.kv_heads, layer.head_dim).index_copy_(0, out, new)
        pages = tables.pages_of(layer)
        return self._attention.attend(q, memory, layer, batch=batch, pages=pages, plan=plan)
