"""The kernels that attend. Imported late: without Triton there are none.

Softmax is computed block by block with a running maximum and sum (Dao et al., FlashAttention,
arXiv:2205.14135), and split over the keys with a reduction of outputs and sums (Flash-Decoding),
in base 2 throughout: exp(s x) = exp2(s log2(e) x).

Whole numbers are int64 where they are not an index of a tile: the interpreter looks for overflows
of smaller ones, which costs more than all else.
"""

# ruff: noqa: ANN001, ANN201, N803, PLR0917, C901, PLR0912, PLR0915 - pointers have no type here,
# what a kernel is compiled for is in capitals, and `attend` is one function: its branches are
# decided when it is compiled, and in the interpreter a call costs as much as ten operations

from __future__ import annotations

from warcore import WarcoreError

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise WarcoreError(
        "backend:triton: Triton is not installed", next="pip install triton"
    ) from error


@triton.jit(do_not_specialize=("tree_width", "tokens", "window"))
def attend(
    q,
    keys,
    values,
    slot_stride,
    q_start,
    q_row,
    positions,
    tree_mask,
    tree_width,
    kv_indices,
    spans,
    out,
    partial,
    sums,
    tokens,
    scale,
    window,
    Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    PACK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Attention of a tile of tokens over PACK of the KV heads of what their requests hold.

    Grid: (tiles, KV heads / PACK, splits). A tile is TOKENS tokens of the batch. For each, and each
    KV head, HEADS of the ROWS are for the GROUP query heads over it. Their keys are a part of
    kv_indices, where all sequences lie one behind the other: of one request or of neighbours, each
    token sees its own, as `span` has it in spans, [3, tokens].

    q and out: [tokens, Q_HEADS, D]; out is written if SPLITS is 1. Else partial, [SPLITS, tokens,
    Q_HEADS, D], and sums, [SPLITS, tokens, Q_HEADS]: of each split its own output, and the base-2
    logarithm of the sum of its weights. tree_mask: [tokens, tree_width], with TREE.
    """
    first = tl.program_id(0).to(tl.int64) * TOKENS
    last = tl.minimum(first + TOKENS, tokens) - 1
    begin, end = tl.load(spans + first), tl.load(spans + 2 * tokens + last)
    # Every token of a tile sees what comes before `clear`, if they are of one request.
    clear = begin
    if PACK == 1 and not WINDOW:
        alone = begin == tl.load(spans + last)
        clear = tl.where(alone, tl.load(spans + tokens + first), begin)
    if WINDOW:
        begin = tl.maximum(begin, tl.load(spans + tokens + first) - window)
        clear = begin
    if SPLITS > 1:
        size = ((end - begin + SPLITS - 1) // SPLITS + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        begin = tl.minimum(begin + tl.program_id(2) * size, end)
        end = tl.minimum(begin + size, end)
        clear = tl.maximum(tl.minimum(clear, end), begin)
    if PACK == 1 and not WINDOW:
        clear = begin + (clear - begin) // BLOCK_N * BLOCK_N

    row = tl.arange(0, ROWS)
    token = first + (row // (HEADS * PACK)).to(tl.int64)
    of_program = tl.program_id(1).to(tl.int64) * PACK
    kv_head = of_program if PACK == 1 else of_program + (row // HEADS % PACK).to(tl.int64)
    head = kv_head * GROUP + (row % HEADS).to(tl.int64)
    within = token <= last
    start = tl.load(spans + token, mask=within, other=0)
    stop = tl.load(spans + tokens + token, mask=within, other=0)[:, None]
    if TREE:
        finish = tl.load(spans + 2 * tokens + token, mask=within, other=0)[:, None]
        root = tl.load(q_start + tl.load(q_row + token, mask=within, other=0))
    if WINDOW:
        position = tl.load(positions + token, mask=within, other=0)
        start = tl.maximum(start, start + position - window + 1)
    start = start[:, None]
    if GROUP < HEADS:
        within = within & (row % HEADS < GROUP)

    d = tl.arange(0, BLOCK_D)
    there = within[:, None]
    if D < BLOCK_D:
        there = there & (d < D)[None, :]
    item = token * Q_HEADS + head
    places = (item * D)[:, None] + d[None, :]
    queries = tl.load(q + places, mask=there, other=0.0)
    if INTERPRETED:
        # Its dot product takes the bits of a bfloat16 for an integer.
        queries = queries.to(tl.float32)
    column = tl.arange(0, BLOCK_N * PACK)
    ahead = (column // PACK).to(tl.int64)
    if PACK == 1:
        in_slot = (of_program * D + d)[None, :]
    else:
        of_column = of_program + (column % PACK).to(tl.int64)
        in_slot = (of_column * D)[:, None] + d[None, :]
        paired = kv_head[:, None] == of_column[None, :]
    total = tl.full([ROWS, BLOCK_D], 0.0, tl.float32)
    # NOTE: a finite number, for -inf - -inf is NaN where a token sees nothing of a block.
    highest = tl.full([ROWS], -3.0e38, tl.float32)
    weight = tl.full([ROWS], 0.0, tl.float32)
    for phase in tl.static_range(2):
        for block in range(begin if phase == 0 else clear, clear if phase == 0 else end, BLOCK_N):
            at = block + ahead
            if phase == 0:
                slot = tl.load(kv_indices + at).to(tl.int64) * slot_stride
                loaded = (d < D)[None, :]
            else:
                known = at < end
                slot = tl.load(kv_indices + at, mask=known, other=0).to(tl.int64) * slot_stride
                loaded = known[:, None]
                if D < BLOCK_D:
                    loaded = loaded & (d < D)[None, :]
            offsets = slot[:, None] + in_slot
            k = tl.load(keys + offsets, mask=loaded, other=0.0)
            v = tl.load(values + offsets, mask=loaded, other=0.0)
            if INTERPRETED:
                k = k.to(tl.float32)
                v = v.to(tl.float32)
            scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
            if phase == 1:
                at = at[None, :]
                seen = (at >= start) & (at < stop)
                if SPLITS > 1:
                    seen = seen & known[None, :]
                if TREE:
                    node = at - stop
                    fits = (node >= 0) & (node < tree_width) & (at < finish) & (at < end)
                    allowed = tl.load(
                        tree_mask + (token * tree_width)[:, None] + node, mask=fits, other=0
                    )
                    fits = fits & (allowed != 0)
                    if WINDOW:
                        # Two nodes may be equally deep: their positions say how far apart they are.
                        depth = tl.load(positions + root[:, None] + node, mask=fits, other=0)
                        fits = fits & (depth > position[:, None] - window)
                    seen = seen | fits
                if PACK > 1:
                    seen = seen & paired
                scores = tl.where(seen, scores, float("-inf"))
                if TOKENS > 1 or TREE:
                    # What one token sees another may not, and 0 times NaN or inf is NaN.
                    v = tl.where(tl.abs(v) < float("inf"), v, 0.0).to(v.dtype)
            if INTERPRETED:
                # Its maximum of nothing but NaN is a warning.
                higher = tl.max(tl.where(scores == scores, scores, -3.0e38), 1)  # noqa: PLR0124
            else:
                higher = tl.max(scores, 1)
            higher = tl.maximum(highest, higher)
            weights = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(highest - higher)
            total = tl.dot(weights.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
            weight = weight * fade + tl.sum(weights, 1)
            highest = higher

    # A token that sees nothing gives 0; the largest weight of any other is 1.
    total = total / tl.maximum(weight, 1.0e-30)[:, None]
    if SPLITS == 1:
        tl.store(out + places, total.to(out.dtype.element_ty), mask=there)
    else:
        part = tl.program_id(2).to(tl.int64) * tokens * Q_HEADS
        tl.store(partial + part * D + places, total, mask=there)
        tl.store(sums + part + item, highest + tl.log2(tl.maximum(weight, 1.0e-30)), mask=within)


@triton.jit(do_not_specialize=("items",))
def reduce(
    partial,
    sums,
    out,
    items,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Put the outputs of all splits together, each with the weight of its sum.

    Grid: (tokens * query heads,). PARTS is SPLITS, rounded up to a power of two.
    """
    item = tl.program_id(0).to(tl.int64)
    split, d = tl.arange(0, PARTS), tl.arange(0, BLOCK_D)
    places = split.to(tl.int64) * items + item
    log = tl.load(sums + places, mask=split < SPLITS, other=-3.0e38)
    weights = tl.exp2(log - tl.max(log))
    there = (split < SPLITS)[:, None] & (d < D)[None, :]
    parts = tl.load(partial + (places * D)[:, None] + d[None, :], mask=there, other=0.0)
    total = tl.sum(parts * weights[:, None], 0) / tl.sum(weights)
    tl.store(out + item * D + d, total.to(out.dtype.element_ty), mask=d < D)
