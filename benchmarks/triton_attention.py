"""Attention in Triton, torch's attention over gathered pages, and what the GPU's memory allows.

    python benchmarks/triton_attention.py [--quick] [--json FILE]

Each row is one layer's attention of one step, in bfloat16, with scattered pages of 16 tokens. The
times are those of the device, between two events around many launches. `limit` is the time in which
the GPU copies as many bytes as the keys and values of the batch have; `of limit` is how much of
that bandwidth the kernel reached. torch gets its keys and values gathered already: its own time is
that of `scaled_dot_product_attention` alone, and `gather` is what gathering them takes.

It needs a GPU, and the distributions warcore-backend-triton and torch for CUDA.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import attrs
import measure
import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 16
HEADS, KV_HEADS, DIM = 32, 8, 128
DECODES = ((1, 1024), (1, 16384), (8, 4096), (64, 1024), (64, 4096), (256, 1024))
PREFILLS = ((1, 1024, 0), (4, 512, 0), (1, 512, 8192))
QUICK = 2
"""Rows of each kind in a short run."""


@attrs.frozen(eq=False)
class Step:
    """One layer's attention of `requests`, each with `new` tokens after `prefix` cached ones."""

    requests: int
    new: int
    prefix: int
    q: torch.Tensor
    keys: torch.Tensor
    """[slots, kv_heads, D]."""
    values: torch.Tensor
    table: torch.Tensor
    """[requests + 1, length] i32."""

    @classmethod
    def random(cls, requests: int, new: int, prefix: int) -> Step:
        """Pages in no order, on the GPU."""
        draw = torch.Generator().manual_seed(requests)
        length = -(-(prefix + new) // PAGE) * PAGE
        pages = 1 + torch.randperm(requests * length // PAGE, generator=draw)
        slots = (pages[:, None] * PAGE + torch.arange(PAGE)).view(requests, length)
        table = torch.cat([torch.zeros(1, length, dtype=torch.int64), slots])
        pool = (requests * length + PAGE, KV_HEADS, DIM)
        given = {"dtype": torch.bfloat16, "device": "cuda"}
        return cls(
            requests,
            new,
            prefix,
            torch.randn(requests * new, HEADS, DIM, **given),
            torch.randn(pool, **given),
            torch.randn(pool, **given),
            table.int().cuda(),
        )

    @property
    def length(self) -> int:
        return self.prefix + self.new

    @property
    def bytes(self) -> int:
        """Of the keys and values that a step has to read."""
        return 2 * self.requests * self.length * KV_HEADS * DIM * self.keys.element_size()


def triton_of(step: Step) -> tuple[Callable[[], object], Callable[[], object]]:
    """(the metadata of the step, the attention of one layer)."""
    from warcore_backend_triton import ops
    from warcore_backend_triton.tiling import Heads, Tiling, most_partial

    heads = Heads(HEADS, KV_HEADS, DIM)
    tokens = step.requests * step.new
    starts = torch.arange(step.requests + 1, device="cuda") * step.new
    q_row = torch.arange(step.requests, device="cuda").repeat_interleave(step.new)
    positions = step.prefix + torch.arange(tokens, device="cuda") - starts[q_row]
    rows = torch.arange(1, step.requests + 1, device="cuda")
    lens = torch.full((step.requests,), step.length, dtype=torch.int32, device="cuda")
    longest = step.length
    tiling = Tiling.of(heads, torch.bfloat16, batch=step.requests, tokens=tokens, longest=longest)
    indptr = torch.empty(step.requests + 1, dtype=torch.int64, device="cuda")
    indices = torch.empty(step.requests * longest, dtype=torch.int32, device="cuda")
    spans = torch.empty(3 * tokens, dtype=torch.int64, device="cuda")
    size = most_partial(heads, max_tokens=tokens, width=longest) * HEADS
    partial = torch.empty(size * DIM, device="cuda")
    sums = torch.empty(size, device="cuda")
    out = torch.empty_like(step.q)
    q_start = starts.int()

    def plan() -> None:
        ops.plan(
            step.table, None, rows, lens, q_start, q_row, positions, positions, longest, False,
            indptr, indices, spans, None, None,
        )  # fmt: skip

    def attend() -> torch.Tensor:
        ops.attend(
            step.q, step.keys, step.values, q_start, q_row, positions, None, indices, spans,
            DIM**-0.5, None, tiling.tokens, tiling.keys, tiling.splits, tiling.pack, partial, sums,
            out,
        )  # fmt: skip
        return out

    plan()
    return plan, attend


def torch_of(step: Step) -> tuple[Callable[[], object], Callable[[], object]]:
    """(gathering keys and values, torch's attention over them)."""
    slots = step.table[1:, : step.length].long()
    shape = (step.requests, step.length, KV_HEADS, DIM)
    flat = slots.reshape(-1)
    k, v = (memory[flat].view(shape).transpose(1, 2) for memory in (step.keys, step.values))
    q = step.q.view(step.requests, step.new, HEADS, DIM).transpose(1, 2)
    mask = None
    if step.new > 1 and step.prefix:
        at = torch.arange(step.length, device="cuda")
        mask = at <= at[step.prefix :, None]

    def gather() -> None:
        step.keys.index_select(0, flat)
        step.values.index_select(0, flat)

    def attend() -> torch.Tensor:
        causal = step.new > 1 and not step.prefix
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True
        )

    return gather, attend


def milliseconds(call: Callable[[], object], rounds: int) -> float:
    """Of one call on the device: the median over `rounds`, each of ten calls."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 10)
    return median(times)


def bandwidth(rounds: int) -> float:
    """Bytes per millisecond that a copy reads."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    # A copy reads and writes: half of what it moves is read.
    return 2 * source.numel() / milliseconds(lambda: target.copy_(source), rounds)


def row_of(step: Step, rate: float, rounds: int) -> dict[str, Any]:
    """What is printed of one step. AssertionError if the two do not agree."""
    plan, attend = triton_of(step)
    gather, reference = torch_of(step)
    shape = (step.requests, step.new, HEADS, DIM)
    expected, found = reference().transpose(1, 2), attend().view(shape)
    assert (found - expected).abs().max() <= 2e-2 * expected.abs().max()
    took = milliseconds(attend, rounds)
    kind = "decode" if step.new == 1 else "prefill"
    limit = step.bytes / rate
    return {
        "step": f"{kind} {step.requests} x {step.prefix} + {step.new}",
        "plan ms": milliseconds(plan, rounds),
        "triton ms": took,
        "limit ms": limit,
        "of limit": f"{limit / took:.0%}" if step.new == 1 else None,
        "torch ms": milliseconds(reference, rounds),
        "gather ms": milliseconds(gather, rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/triton_attention.py needs a GPU: torch sees none, and nothing was run")
        return
    rounds, most = (5, QUICK) if given.quick else (30, None)
    rate = bandwidth(rounds)
    shapes = [(n, 1, length - 1) for n, length in DECODES[:most]] + [*PREFILLS[:most]]
    rows = []
    with torch.inference_mode():
        rows = [row_of(Step.random(*shape), rate, rounds) for shape in shapes]
    measure.print_table(rows)
    name = torch.cuda.get_device_name()
    print(f"\n{name}, {rate / 1e6:.0f} GB/s in a copy, torch {torch.__version__}")
    if given.json is not None:
        facts = {"device": name, "bytes per ms": rate, "rows": rows, "machine": measure.machine()}
        given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
