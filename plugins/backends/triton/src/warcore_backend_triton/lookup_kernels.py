"""The kernels that look up, once for all layers, where a step's keys and values lie.

Imported late and after `kernels`, which says what is missing without Triton. Whole numbers are
int64 where they are not an index of a tile, as there.
"""

# ruff: noqa: ANN001, ANN201, N803, PLR0917 - pointers have no type here, and what a kernel is
# compiled for is in capitals

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("batch", "longest"))
def copy_slots(
    req_to_token,
    row_stride,
    full_to_swa,
    rows,
    seq_lens,
    kv_indptr,
    kv_indices,
    swa_indices,
    batch,
    longest,
    BATCH: tl.constexpr,
    REQUESTS: tl.constexpr,
    CHUNK: tl.constexpr,
    SWA: tl.constexpr,
):
    """Copy the slots of every sequence of a batch, one behind the other.

    Grid: (REQUESTS at a time, CHUNK slots at a time of the longest sequence). Each program sums up
    the lengths before its own: so few numbers that a pass of its own over them would cost more.
    With SWA, swa_indices are these slots where the window pool has them.
    """
    request = tl.program_id(0) * REQUESTS + tl.arange(0, REQUESTS).to(tl.int64)
    at = (tl.program_id(1) * CHUNK + tl.arange(0, CHUNK).to(tl.int64))[None, :]
    each = tl.arange(0, BATCH)
    lengths = tl.load(seq_lens + each, mask=each < batch, other=0).to(tl.int64)
    lengths = tl.minimum(lengths, longest)
    before = each[None, :] < request[:, None]
    begin = tl.sum(tl.where(before, lengths[None, :], 0), 1)
    there = request < batch
    length = tl.load(seq_lens + request, mask=there, other=0).to(tl.int64)
    length = tl.minimum(length, longest)
    if tl.program_id(1) == 0:
        tl.store(kv_indptr + request, begin, mask=there)
        tl.store(kv_indptr + 1 + request, begin + length, mask=request == batch - 1)
    own = at < length[:, None]
    row = tl.load(rows + request, mask=there, other=0) * row_stride
    slots = tl.load(req_to_token + row[:, None] + at, mask=own, other=0)
    places = begin[:, None] + at
    tl.store(kv_indices + places, slots, mask=own)
    if SWA:
        tl.store(swa_indices + places, tl.load(full_to_swa + slots, mask=own, other=0), mask=own)


@triton.jit(do_not_specialize=("batch", "tokens"))
def span(
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
    TOKENS: tl.constexpr,
    TREE: tl.constexpr,
    SWA: tl.constexpr,
):
    """Where in kv_indices each token sees all of [first, stop), and in a tree some of [stop, end).

    Grid: (TOKENS at a time,). spans: [3, tokens] i64. In a chain `end` is `stop`. A padding token,
    beyond q_start[batch], sees nothing, behind all that others see. With SWA, swa_out [tokens] i64
    are the slots of the window pool to write.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS).to(tl.int64)
    there = token < tokens
    live = token < tl.load(q_start + batch)
    everything = tl.load(kv_indptr + batch)
    request = tl.load(q_row + token, mask=live, other=0)
    first = tl.load(kv_indptr + request, mask=live, other=0)
    end = tl.load(kv_indptr + 1 + request, mask=live, other=0)
    if TREE:
        begin = tl.load(q_start + request, mask=live, other=0)
        stop = end - (tl.load(q_start + 1 + request, mask=live, other=0) - begin)
    else:
        position = tl.load(positions + token, mask=live, other=0)
        stop = tl.minimum(first + 1 + position, end)
        end = stop
    tl.store(spans + token, tl.where(live, first, everything), mask=there)
    tl.store(spans + tokens + token, tl.where(live, stop, everything), mask=there)
    tl.store(spans + 2 * tokens + token, tl.where(live, end, everything), mask=there)
    if SWA:
        full = tl.load(out_slots + token, mask=there, other=0)
        swa = tl.load(full_to_swa + full, mask=there, other=0).to(tl.int64)
        tl.store(swa_out + token, swa, mask=there)
