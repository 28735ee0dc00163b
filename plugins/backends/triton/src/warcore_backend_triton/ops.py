"""The kernels as operators of torch: dispatch modes, fake tensors and graph captures see them, and
their schemas say what they write. Imported late: it needs Triton.

Every launch in the interpreter holds one lock. Launches are on the current stream, and none waits.
"""

# ruff: noqa: PLR0917 - operators of torch take their arguments in the order of the schema

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from warcore_backend_triton import kernels, lookup_kernels
from warcore_backend_triton.interpreter import LAUNCHING, interprets
from warcore_backend_triton.tiling import CHUNK, SPANS, Heads, power_of_two, rows_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

INTERPRETED: Final = interprets()
COMPILING: Final = {"enable_fp_fusion": True}
"""What kernels are compiled with: said, since Triton's default is about to change."""
SCHEMAS: Final = {
    "plan": (
        "(Tensor req_to_token, Tensor? full_to_swa, Tensor rows, Tensor seq_lens, Tensor q_start, "
        "Tensor q_row, Tensor positions, Tensor out_slots, int longest, bool tree, "
        "Tensor(a!) kv_indptr, Tensor(b!) kv_indices, Tensor(c!) spans, "
        "Tensor(d!)? swa_indices, Tensor(e!)? swa_out) -> ()"
    ),
    "attend": (
        "(Tensor q, Tensor keys, Tensor values, Tensor q_start, Tensor q_row, "
        "Tensor positions, Tensor? tree_mask, Tensor kv_indices, Tensor spans, float scale, "
        "int? window, int tile_tokens, int tile_keys, int splits, int pack, "
        "Tensor(a!) partial, Tensor(b!) sums, Tensor(c!) out) -> ()"
    ),
}
LOG2_E: Final = 1.4426950408889634
_library: Final = torch.library.Library("warcore_backend_triton", "DEF")


def _launching() -> AbstractContextManager[Any]:
    return LAUNCHING if INTERPRETED else nullcontext()


def plan(
    req_to_token: torch.Tensor,
    full_to_swa: torch.Tensor | None,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    q_start: torch.Tensor,
    q_row: torch.Tensor,
    positions: torch.Tensor,
    out_slots: torch.Tensor,
    longest: int,
    tree: bool,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    spans: torch.Tensor,
    swa_indices: torch.Tensor | None,
    swa_out: torch.Tensor | None,
) -> None:
    """Copy the slots of the sequences of a batch, and find what of them each token sees.

    req_to_token [rows of the table, width] and full_to_swa [slots] i32, the shared tables; rows [B]
    i64; seq_lens [B] i32, of which no more than `longest` count; q_start [B + 1] i32; q_row,
    positions and out_slots [T] i64. Writes the fronts of kv_indptr [B + 1] i64, where each sequence
    begins, of kv_indices [B * longest] i32 and of spans [3 * T] i64; with a map also those of
    swa_indices and of swa_out [T] i64, where the window pool has kv_indices and out_slots.
    """
    batch, tokens = rows.shape[0], q_row.shape[0]
    together = power_of_two(batch) if INTERPRETED else 1
    block = power_of_two(tokens) if INTERPRETED else SPANS
    with _launching():
        lookup_kernels.copy_slots[(-(-batch // together), -(-longest // CHUNK))](
            req_to_token,
            req_to_token.stride(0),
            full_to_swa,
            rows,
            seq_lens,
            kv_indptr,
            kv_indices,
            swa_indices,
            batch,
            longest,
            BATCH=power_of_two(batch),
            REQUESTS=together,
            CHUNK=min(CHUNK, power_of_two(longest)),
            SWA=full_to_swa is not None,
            **COMPILING,
        )
        lookup_kernels.span[(-(-tokens // block),)](
            q_start,
            q_row,
            positions,
            out_slots,
            full_to_swa,
            kv_indptr,
            spans,
            swa_out,
            batch,
            tokens,
            TOKENS=block,
            TREE=tree,
            SWA=full_to_swa is not None,
            **COMPILING,
        )


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    q_start: torch.Tensor,
    q_row: torch.Tensor,
    positions: torch.Tensor,
    tree_mask: torch.Tensor | None,
    kv_indices: torch.Tensor,
    spans: torch.Tensor,
    scale: float,
    window: int | None,
    tile_tokens: int,
    tile_keys: int,
    splits: int,
    pack: int,
    partial: torch.Tensor,
    sums: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attention of q [T, q_heads, D] over the slots that `plan` copied.

    keys and values [slots, kv_heads, D] of one layer, contiguous. tile_tokens, tile_keys, splits
    and pack: a `Tiling`. Writes out [T, q_heads, D], 0 for padding tokens, and with more than one
    split the front of partial [splits * T * q_heads * D] f32 and of sums [splits * T * q_heads].
    """
    heads = Heads(q.shape[1], keys.shape[1], q.shape[2])
    tokens = q.shape[0]
    with _launching():
        kernels.attend[(-(-tokens // tile_tokens), heads.kv // pack, splits)](
            q.contiguous(),
            keys,
            values,
            keys.stride(0),
            q_start,
            q_row,
            positions,
            tree_mask,
            0 if tree_mask is None else tree_mask.shape[1],
            kv_indices,
            spans,
            out,
            partial,
            sums,
            tokens,
            scale * LOG2_E,
            0 if window is None else window,
            Q_HEADS=heads.query,
            GROUP=heads.group,
            HEADS=heads.padded_group,
            PACK=pack,
            D=heads.dim,
            BLOCK_D=heads.padded_dim,
            TOKENS=tile_tokens,
            ROWS=rows_of(heads, tile_tokens, pack),
            BLOCK_N=tile_keys,
            SPLITS=splits,
            TREE=tree_mask is not None,
            WINDOW=window is not None,
            INTERPRETED=INTERPRETED,
            **COMPILING,
        )
        if splits > 1:
            kernels.reduce[(tokens * heads.query,)](
                partial,
                sums,
                out,
                tokens * heads.query,
                D=heads.dim,
                BLOCK_D=heads.padded_dim,
                SPLITS=splits,
                PARTS=power_of_two(splits),
                **COMPILING,
            )


def _writes_only(*_: object) -> None:
    """What a fake tensor sees of an operator that returns nothing."""


def _register() -> None:
    for name, function in (("plan", plan), ("attend", attend)):
        _library.define(name + SCHEMAS[name])
        for key in ("CPU", "CUDA"):
            _library.impl(name, function, key)
        torch.library.register_fake(f"warcore_backend_triton::{name}", _writes_only, lib=_library)


_register()
