"""The Triton kernels. Imported late: without Triton there are none.

Softmax is computed block by block with a running maximum and sum (Dao et al., FlashAttention,
arXiv:2205.14135), and split over the keys with a reduction of outputs and sums (Flash-Decoding),
in base 2 throughout: exp(s x) = exp2(s log2(e) x).
"""

# ruff: noqa: ANN001, ANN201, N803, PLR0917, C901, PLR0912, PLR0915 - pointers have no type here,
# what a kernel is compiled for is in capitals, and `attend` is one function: its branches are
# decided when it is compiled

from __future__ import annotations

from warcore import WarcoreError

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise WarcoreError(
        "backend:trtllm_mha: Triton is not installed", next="pip install triton"
    ) from error


@triton.jit(do_not_specialize=("pages_per_row", "tree_width", "tiles", "window", "items"))
def attend(
    q,
    keys,
    values,
    pages,
    pages_per_row,
    q_start,
    seq_lens,
    positions,
    tree_mask,
    tree_width,
    out,
    partial,
    sums,
    tiles,
    items,
    scale,
    window,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Attention of a tile of one request's tokens over one KV head of the request's pages.

    Grid: (requests * tiles, KV heads, splits). A tile is TOKENS tokens of a request; HEADS of the
    ROWS are for the GROUP query heads over the KV head. Tiles beyond a request's tokens end at
    once. q and out: [tokens, Q_HEADS, D]; keys and values: [pages, PAGE, KV_HEADS, D], of which
    `pages` [requests, pages_per_row] i32 names those of a request in their order. out is written if
    SPLITS is 1. Else partial, [SPLITS, items, D], with items = tokens * Q_HEADS, and sums, [SPLITS,
    items]: of each split its own output, and the base-2 logarithm of the sum of its weights.
    tree_mask: [tokens, tree_width], with TREE.
    """
    request = tl.program_id(0) // tiles
    first = (tl.program_id(0) % tiles) * TOKENS
    begin_q = tl.load(q_start + request)
    count = tl.load(q_start + request + 1) - begin_q
    if first >= count:
        return
    length = tl.load(seq_lens + request)
    kv_head = tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    if INTERPRETED:
        # It looks for overflows of smaller numbers, which costs more than all else.
        begin_q, count, length = begin_q.to(tl.int64), count.to(tl.int64), length.to(tl.int64)
        row, column = row.to(tl.int64), column.to(tl.int64)
        first, request, kv_head = first.to(tl.int64), request.to(tl.int64), kv_head.to(tl.int64)
    settled = length - count

    nth = first + row // HEADS
    within = (nth < count) & (row // HEADS < TOKENS)
    if GROUP < HEADS:
        within = within & (row % HEADS < GROUP)
    token = (begin_q + nth).to(tl.int64)
    item = token * Q_HEADS + kv_head * GROUP + row % HEADS
    d = tl.arange(0, BLOCK_D)
    there = within[:, None] & (d < D)[None, :]
    places = (item * D)[:, None] + d[None, :]
    queries = tl.load(q + places, mask=there, other=0.0)
    if INTERPRETED:
        # Its dot product takes the bits of a bfloat16 for an integer.
        queries = queries.to(tl.float32)

    # Each token of a tile sees [start, stop), and in a tree its ancestors behind `settled`.
    if TREE:
        here = tl.load(positions + token, mask=within, other=0)[:, None]
        stop = settled
        end = length
        nearest = settled
    else:
        here = (settled + nth)[:, None]
        stop = here + 1
        end = tl.minimum(settled + first + TOKENS, length)
        nearest = settled + first
    begin = 0
    if WINDOW:
        begin = tl.maximum(nearest - window + 1, 0)
    if SPLITS > 1:
        size = ((end - begin + SPLITS - 1) // SPLITS + BLOCK - 1) // BLOCK * BLOCK
        begin = tl.minimum(begin + tl.program_id(2) * size, end)
        end = tl.minimum(begin + size, end)

    total = tl.full([ROWS, BLOCK_D], 0.0, tl.float32)
    # NOTE: a finite number, for -inf - -inf is NaN where a token sees nothing of a block.
    highest = tl.full([ROWS], -3.0e38, tl.float32)
    weight = tl.full([ROWS], 0.0, tl.float32)
    for block in range(begin, end, BLOCK):
        at = block + column
        known = at < end
        page = tl.load(pages + request * pages_per_row + at // PAGE, mask=known, other=0)
        slot = page.to(tl.int64) * PAGE + at % PAGE
        offsets = ((slot * KV_HEADS + kv_head) * D)[:, None] + d[None, :]
        loaded = known[:, None] & (d < D)[None, :]
        k = tl.load(keys + offsets, mask=loaded, other=0.0)
        v = tl.load(values + offsets, mask=loaded, other=0.0)
        if INTERPRETED:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        at = at[None, :]
        seen = known[None, :] & (at < stop)
        if WINDOW:
            seen = seen & (at > here - window)
        if TREE:
            node = at - settled
            drafted = within[:, None] & (node >= 0) & (node < tree_width) & known[None, :]
            allowed = tl.load(
                tree_mask + (token * tree_width)[:, None] + node, mask=drafted, other=0
            )
            drafted = drafted & (allowed != 0)
            if WINDOW:
                # Two nodes may be equally deep: their positions say how far apart they are.
                depth = tl.load(positions + begin_q + node, mask=drafted, other=0)
                drafted = drafted & (depth > here - window)
            seen = seen | drafted
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
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
        part = tl.program_id(2).to(tl.int64) * items
        tl.store(partial + part * D + places, total, mask=there)
        tl.store(sums + part + item, highest + tl.log2(tl.maximum(weight, 1.0e-30)), mask=within)


@triton.jit(do_not_specialize=("items", "batch"))
def reduce(
    partial,
    sums,
    q_start,
    out,
    items,
    batch,
    Q_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Put the outputs of all splits together, each with the weight of its sum.

    Grid: (items,). PARTS is SPLITS, rounded up to a power of two. Padding tokens, beyond
    q_start[batch], have no output to put together, and leave that of the memory as it is.
    """
    item = tl.program_id(0).to(tl.int64)
    if item // Q_HEADS >= tl.load(q_start + batch):
        return
    split, d = tl.arange(0, PARTS), tl.arange(0, BLOCK_D)
    places = split.to(tl.int64) * items + item
    log = tl.load(sums + places, mask=split < SPLITS, other=-3.0e38)
    weights = tl.exp2(log - tl.max(log))
    there = (split < SPLITS)[:, None] & (d < D)[None, :]
    parts = tl.load(partial + (places * D)[:, None] + d[None, :], mask=there, other=0.0)
    total = tl.sum(parts * weights[:, None], 0) / tl.sum(weights)
    tl.store(out + item * D + d, total.to(out.dtype.element_ty), mask=d < D)
