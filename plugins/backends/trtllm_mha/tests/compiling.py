"""Compiles the Triton kernels as they are launched, for a GPU that need not be there.

    python compiling.py 90 [decode | verify | prefill]

Run without TRITON_INTERPRET. Writes one JSON line: {kernel and variant: bytes of shared memory}.
With a step, every element type and size of it; else the two variants that differ most.
"""

from __future__ import annotations

import itertools
import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warcore_backend_trtllm_mha import kernels
from warcore_backend_trtllm_mha.operators import COMPILING
from warcore_backend_trtllm_mha.tiling import Tiling, padded_dim, power_of_two, rows_of

TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
KNOWN = {
    "pages": "*i32", "q_start": "*i32", "seq_lens": "*i32", "positions": "*i64",
    "tree_mask": "*i1", "partial": "*fp32", "sums": "*fp32", "scale": "fp32",
}  # fmt: skip
STEPS = {"decode": (4, 1, 4096), "verify": (32, 5, 4096), "prefill": (1, 512, 512)}
"""(requests, tokens of each, longest sequence)"""


def compiled(kernel, constants, target, dtype):
    """The kernel for `target`, with aligned pointers, as torch's memory is."""
    known = {**KNOWN, **dict.fromkeys(("q", "keys", "values", "out"), TYPES[dtype])}
    signature = {
        name: "constexpr" if name in constants else known.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=target, options=COMPILING)


def constants_of(dtype, dim, group, page, step):
    """What `attend` is compiled for."""
    batch, each, longest = STEPS[step]
    shape = (8 * group, 8, dim)
    tiling = Tiling.of(shape, dtype, batch=batch, each=each, longest=longest)
    heads = power_of_two(group)
    return {
        "Q_HEADS": shape[0],
        "KV_HEADS": shape[1],
        "GROUP": group,
        "HEADS": heads,
        "D": dim,
        "BLOCK_D": padded_dim(dim),
        "PAGE": page,
        "TOKENS": tiling.tokens,
        "ROWS": rows_of(tiling.tokens, heads),
        "BLOCK": tiling.keys,
        "SPLITS": tiling.splits,
        "TREE": step == "verify",
        "WINDOW": group == 3,
        "INTERPRETED": False,
    }


def variants(step):
    """(kernel, constants, element type) of each thing to compile; step: all of that step."""
    sizes = {"Q_HEADS": 24, "D": 80, "BLOCK_D": 128, "SPLITS": 7, "PARTS": 8}
    yield kernels.reduce, sizes, torch.bfloat16
    bf16 = torch.bfloat16
    attended = [(bf16, 128, 1, 16, "decode"), (bf16, 80, 3, 64, "verify")]
    if step is not None:
        attended = [
            *itertools.product(TYPES, (64, 80, 128, 256), (3,), (32,), (step,)),
            *itertools.product((bf16,), (128,), (1, 8), (16, 64), (step,)),
        ]
    for each in attended:
        yield kernels.attend, constants_of(*each), each[0]


def main():
    number, *step = sys.argv[1:]
    target = GPUTarget("cuda", int(number), 32)
    found = {}
    for kernel, constants, dtype in variants(*step or [None]):
        made = compiled(kernel, constants, target, dtype)
        found[f"{kernel.__name__} {dtype} {constants}"] = made.metadata.shared
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
