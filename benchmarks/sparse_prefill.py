"""A prefill under sliding windows: every position under a mask, or blocks over a chunk cache.

    python benchmarks/sparse_prefill.py [--quick] [--rounds N] [--threads N]

One step of the backend deepseek_v4 with its lookup and the attention of a layer with a window and
of one without, in bfloat16, on scattered pages: dense, then sparse. The heads are those of the demo
model. `tokens` are the new ones of each request, `past` those before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from measure import arguments, parse, report, take_turns

from warcore import AttentionSpec, ForwardBatch, ForwardMode, Layer, testkit
from warcore_backend_deepseek_v4 import DeepseekV4, Options

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
LAYERS = 15
"""Of each kind: a lookup is made once for all layers of a step."""
# (requests, tokens, past, window)
SHAPES = (
    (1, 32, 0, 64),
    (1, 128, 0, 64),
    (1, 128, 512, 64),
    (1, 512, 0, 128),
    (1, 512, 4096, 128),
    (8, 32, 64, 64),
    (8, 64, 1024, 128),
)
QUICK = 3
"""Shapes of a short run."""


def batch_of(ctx: Any, requests: int, tokens: int, past: int) -> ForwardBatch:
    """EXTEND, every request alike."""
    rows = torch.arange(1, requests + 1)
    q_row = torch.arange(requests).repeat_interleave(tokens)
    positions = (past + torch.arange(tokens)).repeat(requests)
    count, end = requests * tokens, past + tokens
    return ForwardBatch(
        mode=ForwardMode.EXTEND,
        size=requests,
        padded_size=requests,
        padded_tokens=count,
        tokens=torch.zeros(count, dtype=torch.int64),
        rows=rows,
        seq_lens=torch.full((requests,), end, dtype=torch.int32),
        q_start=torch.arange(requests + 1, dtype=torch.int32) * tokens,
        q_row=q_row,
        positions=positions,
        out_slots=ctx.shared.req_to_token[rows[q_row], positions].long(),
        max_seq_len=end,
        extend_lens=(tokens,) * requests,
    )


def step_of(
    above: int, requests: int, tokens: int, past: int, window: int
) -> Callable[[int | None], torch.Tensor]:
    """step(window or None): a prefill whose layers are all of that kind."""
    spec = AttentionSpec(
        q_heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype=torch.bfloat16,
        kv_dtype=torch.bfloat16,
        page_size=PAGE,
        max_context=-(-(past + tokens) // PAGE) * PAGE,
        windows=frozenset({None, window}),
        tree=False,
        device=torch.device("cpu"),
        role="target",
    )
    options = Options(sparse_above=above)
    ctx = testkit.context(spec, DeepseekV4, max_batch=requests, layers=2, options=options)
    for memory in (each for layer in ctx.kv for each in layer.values()):
        memory.normal_()
    backend, batch = DeepseekV4(ctx), batch_of(ctx, requests, tokens, past)
    count = batch.padded_tokens
    q, k, v = (torch.randn(count, n, DIM).bfloat16() for n in (HEADS, KV_HEADS, KV_HEADS))
    layers = {
        kind: Layer(i, HEADS, KV_HEADS, DIM, DIM**-0.5, kind)
        for i, kind in enumerate((None, window))
    }

    def step(kind: int | None) -> torch.Tensor:
        with torch.inference_mode():
            backend.init_forward_metadata_out_graph(batch)
            backend.prepare_prefill_shared_read_snapshot(batch, count)
            backend.init_forward_metadata_in_graph(batch)
            for _ in range(LAYERS):
                out = backend.forward(q, k, v, layers[kind], batch)
        return out

    return step


def row_of(shape: tuple[int, int, int, int], rounds: int) -> dict[str, Any]:
    """What is printed of one shape. AssertionError if the two do not agree."""
    requests, tokens, past, window = shape
    dense, sparse = (step_of(above, *shape) for above in (1 << 30, 0))
    row: dict[str, Any] = {"step": f"{requests} x {tokens}", "past": past, "window": window}
    for name, kind in (("window", window), ("full", None)):
        took = take_turns(
            {"dense": lambda k=kind: dense(k), "sparse": lambda k=kind: sparse(k)},  # type: ignore[misc]
            rounds,
        )
        row[f"{name} dense ms"] = took["dense"].cpu * 1e3
        row[f"{name} sparse ms"] = took["sparse"].cpu * 1e3
        row[f"{name} dense/sparse"] = took["dense"].cpu / took["sparse"].cpu
    return row


def main() -> None:
    given = parse(arguments(__doc__, rounds=7))
    shapes = SHAPES[:QUICK] if given.quick else SHAPES
    rounds = 2 if given.quick else given.rounds
    rows = [row_of(shape, rounds) for shape in shapes]
    report("sparse_prefill", rows, layers=LAYERS, threads=given.threads)


if __name__ == "__main__":
    main()
