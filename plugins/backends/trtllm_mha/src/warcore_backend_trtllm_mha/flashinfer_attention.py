"""Attention by the trtllm-gen kernels of flashinfer, for Blackwell GPUs. Imported late.

Their page table, lengths and offsets stay on the device, and the host gives bounds only, so a
capture of them replays with other lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from warcore import ForwardMode, PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore import BackendContext, ForwardBatch, Layer
    from warcore_backend_trtllm_mha.tables import PageTables, Tables

WORKSPACE: Final = 128 << 20
"""Bytes for what the kernels keep between their parts: as many as flashinfer's own tests
give them. Some releases want it zeroed before its first use."""


class FlashinferAttention:
    """One call of flashinfer for each layer: the decode kernel in DECODE, the context kernel in all
    other modes, whose requests have differing numbers of tokens.
    """

    def __init__(self, ctx: BackendContext, tables: PageTables) -> None:
        """Import flashinfer. It builds its kernels at the first call, before any capture."""
        try:
            from flashinfer.decode import trtllm_batch_decode_with_kv_cache
            from flashinfer.prefill import trtllm_batch_context_with_kv_cache
        except ImportError as error:
            raise PluginError(
                f"backend:trtllm_mha: flashinfer is installed and cannot be imported: {error}",
                next="--opt trtllm_mha.kernels=triton, or mend it: python -c 'import flashinfer'",
            ) from error
        self._decode = trtllm_batch_decode_with_kv_cache
        self._context = trtllm_batch_context_with_kv_cache
        self._tables = tables
        self._workspace = ctx.static("trtllm_mha.workspace", (WORKSPACE,), torch.uint8)
        self._kv_start = ctx.static("trtllm_mha.kv_start", (ctx.max_batch + 1,), torch.int32)
        # NOTE: the kernels load whole pages. What nobody has written yet has to be a number, since
        # 0 times NaN is NaN; after that a page only ever holds what some sequence wrote.
        for memory in ctx.kv:
            for name in ("k", "v"):
                memory[name].zero_()

    def captured_length(self, batch: ForwardBatch) -> int:
        """Few lengths: a kernel ends where the sequence does."""
        return self._tables.step_of_four(batch)

    def plan(self, batch: ForwardBatch, tables: Tables) -> torch.Tensor | None:  # noqa: ARG002
        """[B + 1] i32, the positions before each sequence; the decode kernel needs none."""
        if batch.mode is ForwardMode.DECODE:
            return None
        # Its first number stays 0.
        starts = self._kv_start[: batch.padded_size + 1]
        torch.cumsum(batch.seq_lens, 0, dtype=torch.int32, out=starts[1:])
        return starts

    def attend(
        self,
        q: torch.Tensor,
        memory: Mapping[str, torch.Tensor],
        layer: Layer,
        *,
        batch: ForwardBatch,
        pages: torch.Tensor,
        plan: torch.Tensor | None,
    ) -> torch.Tensor:
        """The kernels write live tokens only: padding tokens give 0."""
        given = {
            "query": q.contiguous(),
            "kv_cache": (memory["k"], memory["v"]),
            "workspace_buffer": self._workspace,
            "block_tables": pages,
            "seq_lens": batch.seq_lens,
            "bmm1_scale": layer.scale,
            "bmm2_scale": 1.0,
            # Theirs is the number of positions before the token's own.
            "window_left": -1 if layer.window is None else layer.window - 1,
            "out": torch.zeros_like(q, memory_format=torch.contiguous_format),
            "kv_layout": "NHD",
        }
        longest = self._tables.longest(batch)
        if plan is None:
            return self._decode(**given, max_seq_len=longest, backend="trtllm-gen")
        return self._context(
            **given,
            max_q_len=batch.max_q_len,
            max_kv_len=longest,
            batch_size=batch.padded_size,
            cum_seq_lens_q=batch.q_start,
            cum_seq_lens_kv=plan,
        )
