"""A kernel for Triton's interpreter; imported while TRITON_INTERPRET is set."""

import triton
import triton.language as tl


@triton.jit
def copy_rows(table, rows, slots, width, BLOCK: tl.constexpr):
    row = tl.load(rows + tl.program_id(0))
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(table + row * width + at, mask=at < width)  # the read
    tl.store(slots + tl.program_id(0) * width + at, found.to(tl.int64), mask=at < width)
