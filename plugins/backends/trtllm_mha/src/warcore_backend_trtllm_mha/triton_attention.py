"""Attention by this package's own kernels in Triton. Imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore_backend_trtllm_mha import operators
from warcore_backend_trtllm_mha.tiling import Tiling, most_partial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore import BackendContext, ForwardBatch, Layer
    from warcore_backend_trtllm_mha.tables import PageTables, Tables


class TritonAttention:
    """One launch for each layer, or two where keys are split; the page table is all it needs."""

    def __init__(self, ctx: BackendContext, tables: PageTables) -> None:
        """Take room for the outputs of splits."""
        spec = ctx.spec
        self._tables = tables
        self._dtype = spec.dtype
        self._interpreted = operators.INTERPRETED
        split = spec.q_heads * most_partial(
            spec.kv_heads,
            spec.q_heads // spec.kv_heads,
            max_tokens=ctx.max_tokens,
            width=tables.width,
        )
        self._partial = ctx.static("trtllm_mha.partial", (split * spec.head_dim,), torch.float32)
        self._sums = ctx.static("trtllm_mha.sums", (split,), torch.float32)

    def captured_length(self, batch: ForwardBatch) -> int:
        """Few lengths: a program beyond the end of a sequence returns at once."""
        return self._tables.step_of_four(batch)

    def plan(self, batch: ForwardBatch, tables: Tables) -> None:
        """Nothing: a tile finds what its tokens see by itself."""

    def attend(
        self,
        q: torch.Tensor,
        memory: Mapping[str, torch.Tensor],
        layer: Layer,
        *,
        batch: ForwardBatch,
        pages: torch.Tensor,
        plan: None,  # noqa: ARG002 - there is none
    ) -> torch.Tensor:
        """Padding tokens give 0; in DECODE they attend to the padding slot."""
        tiling = self.tiling(layer, batch)
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        torch.ops.warcore_backend_trtllm_mha.attend(
            q,
            memory["k"],
            memory["v"],
            pages,
            batch.q_start,
            batch.seq_lens,
            batch.positions,
            batch.tree_mask,
            layer.scale,
            layer.window,
            tiling.tokens,
            tiling.tiles,
            tiling.keys,
            tiling.splits,
            self._partial,
            self._sums,
            out,
        )
        return out

    def tiling(self, layer: Layer, batch: ForwardBatch) -> Tiling:
        """How a step is cut, for the most tokens that one of its requests can have."""
        return Tiling.of(
            (layer.q_heads, layer.kv_heads, layer.head_dim),
            self._dtype,
            batch=batch.padded_size,
            each=batch.max_q_len,
            longest=self._tables.longest(batch),
            interpreted=self._interpreted,
        )
