"""The Triton kernels as an operator of torch: dispatch modes, fake tensors and graph captures see
it, and its schema says what it writes. Imported late: it needs Triton.

Every launch in the interpreter holds one lock. Launches are on the current stream, and none waits.
"""

# ruff: noqa: PLR0917 - operators of torch take their arguments in the order of the schema

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, Final

import torch

from warcore_backend_trtllm_mha import kernels
from warcore_backend_trtllm_mha.providers import interprets
from warcore_backend_trtllm_mha.tiling import padded_dim, power_of_two, rows_of

INTERPRETED: Final = interprets()
COMPILING: Final = {"enable_fp_fusion": True}
"""What kernels are compiled with: said, since Triton's default is about to change."""
SCHEMA: Final = (
    "attend(Tensor q, Tensor keys, Tensor values, Tensor pages, Tensor q_start, Tensor seq_lens, "
    "Tensor positions, Tensor? tree_mask, float scale, int? window, int tokens, int tiles, "
    "int block, int splits, Tensor(a!) partial, Tensor(b!) sums, Tensor(c!) out) -> ()"
)
LOG2_E: Final = 1.4426950408889634
LAUNCHING: Final[Any] = threading.RLock() if INTERPRETED else nullcontext()
"""NOTE: the interpreter keeps the place in the grid in one object for all threads, and replaces
functions of the language while a kernel runs: two kernels at once get into each other's way."""
_library: Final = torch.library.Library("warcore_backend_trtllm_mha", "DEF")


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: torch.Tensor,
    q_start: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    tree_mask: torch.Tensor | None,
    scale: float,
    window: int | None,
    tokens: int,
    tiles: int,
    block: int,
    splits: int,
    partial: torch.Tensor,
    sums: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attention of q [T, q_heads, D] over the pages [B, P] i32 of each request.

    keys and values [pages, page_size, kv_heads, D] of one layer, contiguous; q_start [B + 1] and
    seq_lens [B] i32; positions [T] i64; tree_mask [T, K + 1] bool. tokens, tiles, block (of keys)
    and splits: a `Tiling`. Writes out [T, q_heads, D] where tokens are live, and with more than one
    split the front of partial [splits * T * q_heads * D] f32 and of sums [splits * T * q_heads].
    """
    q_heads, kv_heads, dim = q.shape[1], keys.shape[2], q.shape[2]
    batch, items = seq_lens.shape[0], q.shape[0] * q_heads
    heads = power_of_two(q_heads // kv_heads)
    with LAUNCHING:
        kernels.attend[(batch * tiles, kv_heads, splits)](
            q.contiguous(),
            keys,
            values,
            pages,
            pages.stride(0),
            q_start,
            seq_lens,
            positions,
            tree_mask,
            0 if tree_mask is None else tree_mask.shape[1],
            out,
            partial,
            sums,
            tiles,
            items,
            scale * LOG2_E,
            0 if window is None else window,
            Q_HEADS=q_heads,
            KV_HEADS=kv_heads,
            GROUP=q_heads // kv_heads,
            HEADS=heads,
            D=dim,
            BLOCK_D=padded_dim(dim),
            PAGE=keys.shape[1],
            TOKENS=tokens,
            ROWS=rows_of(tokens, heads),
            BLOCK=block,
            SPLITS=splits,
            TREE=tree_mask is not None,
            WINDOW=window is not None,
            INTERPRETED=INTERPRETED,
            **COMPILING,
        )
        if splits > 1:
            kernels.reduce[(items,)](
                partial,
                sums,
                q_start,
                out,
                items,
                batch,
                Q_HEADS=q_heads,
                D=dim,
                BLOCK_D=padded_dim(dim),
                SPLITS=splits,
                PARTS=power_of_two(splits),
                **COMPILING,
            )


def _writes_only(*_: object) -> None:
    """What a fake tensor sees of an operator that returns nothing."""


_library.define(SCHEMA)
for _key in ("CPU", "CUDA"):
    _library.impl("attend", attend, _key)
torch.library.register_fake("warcore_backend_trtllm_mha::attend", _writes_only, lib=_library)
