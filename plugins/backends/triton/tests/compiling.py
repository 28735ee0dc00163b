"""Compiles the kernels as the backend would launch them, for a GPU that need not be there.

    python compiling.py 80 90 [all]

Run without TRITON_INTERPRET. Writes one JSON line: {kernel, variant and target: bytes of shared
memory}. all: every element type and size, rather than those that differ most.
"""

from __future__ import annotations

import itertools
import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warcore_backend_triton import kernels, lookup_kernels
from warcore_backend_triton.ops import COMPILING
from warcore_backend_triton.tiling import Heads, Tiling, rows_of

TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
SCALARS = {"scale": "fp32"}
POINTERS = {
    "req_to_token": "*i32", "full_to_swa": "*i32", "rows": "*i64", "seq_lens": "*i32",
    "kv_indptr": "*i64", "kv_indices": "*i32", "swa_indices": "*i32", "swa_out": "*i64",
    "q_start": "*i32", "q_row": "*i64", "positions": "*i64", "out_slots": "*i64",
    "spans": "*i64", "tree_mask": "*i1", "partial": "*fp32", "sums": "*fp32",
}  # fmt: skip


def compiled(kernel, constants, target, dtype=torch.bfloat16):
    """The kernel for `target`, with aligned pointers, as torch's memory is."""
    of_model = dict.fromkeys(("q", "keys", "values", "out"), TYPES[dtype])
    known = {**POINTERS, **of_model, **SCALARS}
    signature = {
        name: "constexpr" if name in constants else known.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name == "slot_stride"
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=target, options=COMPILING)


def attends(dtype, dims, groups):
    """The constants of every way of cutting that a GPU's tiling has."""
    for dim, group in itertools.product(dims, groups):
        heads = Heads(8 * group, 8, dim)
        # A decode, a verify, a prefill.
        for batch, tokens, longest in ((4, 4, 4096), (32, 160, 4096), (1, 512, 512)):
            tiling = Tiling.of(heads, dtype, batch=batch, tokens=tokens, longest=longest)
            verify = tokens == 160
            yield {
                "Q_HEADS": heads.query,
                "GROUP": group,
                "HEADS": heads.padded_group,
                "PACK": 1,
                "D": dim,
                "BLOCK_D": heads.padded_dim,
                "TOKENS": tiling.tokens,
                "ROWS": rows_of(heads, tiling.tokens, 1),
                "BLOCK_N": tiling.keys,
                "SPLITS": tiling.splits,
                "TREE": verify,
                "WINDOW": group == 3,
                "INTERPRETED": False,
            }


def variants(*, everything):
    """(kernel, constants, element type) of each thing to compile."""
    yield lookup_kernels.copy_slots, {"BATCH": 64, "REQUESTS": 1, "CHUNK": 1024, "SWA": True}, None
    for tree in (False, True):
        yield lookup_kernels.span, {"TOKENS": 128, "TREE": tree, "SWA": True}, None
    yield kernels.reduce, {"D": 80, "BLOCK_D": 128, "SPLITS": 7, "PARTS": 8}, torch.bfloat16
    if everything:
        attended = [(dtype, (64, 80, 96, 128, 256), (3,)) for dtype in TYPES]
        attended.append((torch.bfloat16, (128,), (1, 8)))
    else:
        attended = [(torch.bfloat16, (128,), (1,)), (torch.bfloat16, (80,), (3,))]
    for dtype, dims, groups in attended:
        for constants in attends(dtype, dims, groups):
            yield kernels.attend, constants, dtype


def main():
    *numbers, last = sys.argv[1:]
    everything = last == "all"
    targets = [GPUTarget("cuda", int(n), 32) for n in (numbers if everything else (*numbers, last))]
    found = {}
    for target in targets:
        for kernel, constants, dtype in variants(everything=everything):
            name = f"sm_{target.arch} {kernel.__name__} {dtype} {constants}"
            made = compiled(kernel, constants, target, dtype or torch.bfloat16)
            found[name] = made.metadata.shared
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
