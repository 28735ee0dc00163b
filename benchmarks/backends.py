"""Every installed attention backend on the same steps, against torch_native.

    python benchmarks/backends.py [--quick] [--rounds N] [--threads N] [--device cuda]

A row is one step of four layers with the heads of the demo model, in bfloat16: the metadata hooks
and each layer's attention, eager; under a window every other layer has it. The backends take turns;
a column is the ratio of its median to that of torch_native, in wall time and in processor time, so
more than 1 is slower. Before anything is measured each has to agree with torch_native. A backend
that cannot serve a row is left out of it, and one that serves none is named below, with its
reasons. Where Triton is interpreted (TRITON_INTERPRET=1) its backend runs the tiny rows only.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch
from measure import arguments, parse, report, take_turns

from warcore import (
    AttentionBackend,
    AttentionSpec,
    ForwardBatch,
    ForwardMode,
    Layer,
    find_plugins,
    testkit,
)
from warcore.records import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LAYERS = 4
HEADS, KV_HEADS, DIM = 9, 3, 64
PAGE = 16
REFERENCE = "torch_native"
TOLERANCE = 2e-2
CALLS = 5
"""Steps in one timing: one alone is short."""


@attrs.frozen
class Shape:
    """`requests` that each bring `new` tokens to a sequence of `context`, the new ones included."""

    requests: int
    new: int
    context: int
    window: int | None = None
    """Of layers 0, 2, ..., in tokens."""

    @property
    def mode(self) -> ForwardMode:
        return ForwardMode.DECODE if self.new == 1 else ForwardMode.EXTEND

    def __str__(self) -> str:
        windowed = "" if self.window is None else f", window {self.window}"
        return f"{self.mode.value} {self.requests} x {self.new} of {self.context}{windowed}"

    @property
    def layers(self) -> list[Layer]:
        windows = [None if i % 2 else self.window for i in range(LAYERS)]
        return [Layer(i, HEADS, KV_HEADS, DIM, DIM**-0.5, w) for i, w in enumerate(windows)]


TINY = (Shape(2, 1, 32), Shape(2, 1, 32, window=8))
SHAPES = (
    *(Shape(requests, 1, context) for context in (512, 2048) for requests in (1, 4, 16)),
    *(Shape(1, new, context) for context in (512, 2048) for new in (128, 512)),
    *(Shape(requests, 1, 2048, window=128) for requests in (1, 4, 16)),
    *(Shape(1, new, 2048, window=128) for new in (128, 512)),
)


def spec_of(shape: Shape, device: torch.device) -> AttentionSpec:
    return AttentionSpec(
        q_heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype=torch.bfloat16,
        kv_dtype=torch.bfloat16,
        page_size=PAGE,
        max_context=shape.context,
        windows=frozenset(layer.window for layer in shape.layers),
        tree=False,
        device=device,
        role="target",
    )


def classes(device: torch.device) -> tuple[dict[str, type[AttentionBackend]], dict[str, str]]:
    """The backends that can serve a row, the reference first, and why the others cannot."""
    able, unable = {}, {}
    for record in find_plugins(kind="backend"):
        if record.state != "available":
            unable[record.name] = f"{record.state}: {record.cause}"
            continue
        cls: Any = load(record)
        reasons = [against(cls, shape, device) for shape in TINY]
        if all(reasons):
            unable[record.name] = "; ".join(reasons[0])
        else:
            able[record.name] = cls
    if REFERENCE not in able:
        raise SystemExit(
            f"{REFERENCE} cannot serve. Next: pip install ./plugins/backends/{REFERENCE}"
        )
    return {REFERENCE: able.pop(REFERENCE), **able}, unable


def against(cls: type[AttentionBackend], shape: Shape, device: torch.device) -> list[str]:
    """Why `cls` cannot serve `shape`."""
    reasons = cls.why_not(spec_of(shape, device))
    if cls.page_sizes is not None and PAGE not in cls.page_sizes:
        reasons = [*reasons, f"a page size of {PAGE}"]
    return reasons


def batch_of(shape: Shape, slots: torch.Tensor) -> ForwardBatch:
    """slots: [requests + 1, context], of each row of the shared table."""
    device, tokens = slots.device, shape.requests * shape.new
    rows = torch.arange(1, shape.requests + 1, device=device)
    q_row = torch.arange(shape.requests, device=device).repeat_interleave(shape.new)
    positions = torch.arange(shape.context - shape.new, shape.context, device=device)
    positions = positions.repeat(shape.requests)
    lens = torch.full((shape.requests,), shape.context, dtype=torch.int32, device=device)
    return ForwardBatch(
        mode=shape.mode,
        size=shape.requests,
        padded_size=shape.requests,
        padded_tokens=tokens,
        tokens=torch.zeros(tokens, dtype=torch.int64, device=device),
        rows=rows,
        seq_lens=lens,
        q_start=torch.arange(shape.requests + 1, dtype=torch.int32, device=device) * shape.new,
        q_row=q_row,
        positions=positions,
        out_slots=slots[rows[q_row], positions].long(),
        max_seq_len=shape.context,
        extend_lens=(shape.new,) * shape.requests if shape.mode.is_prefill else (),
    )


def step_of(cls: type[AttentionBackend], shape: Shape, device: torch.device) -> Callable[[], Any]:
    """One step, as the runner calls it: the output of the last layer."""
    draw = torch.Generator(device).manual_seed(0)
    spec = spec_of(shape, device)
    ctx = testkit.context(spec, cls, max_batch=shape.requests, layers=LAYERS)
    backend = cls(ctx)
    batch = batch_of(shape, ctx.shared.req_to_token)
    normal = partial(torch.randn, generator=draw, dtype=torch.bfloat16, device=device)
    slots = ctx.shared.req_to_token.flatten().long()
    swa = ctx.shared.full_to_swa
    past = [normal(slots.shape[0], KV_HEADS, DIM) for _ in "kv"]
    for layer, memory in zip(shape.layers, ctx.kv, strict=True):
        at = slots if layer.window is None or swa is None else swa[slots].long()
        for name, values in zip("kv", past, strict=True):
            memory[name].flatten(0, 1).index_copy_(0, at, values)
    tokens = shape.requests * shape.new
    q = normal(tokens, HEADS, DIM)
    k, v = (normal(tokens, KV_HEADS, DIM) for _ in "kv")

    def step() -> torch.Tensor:
        backend.init_forward_metadata_out_graph(batch)
        if shape.mode.is_prefill:
            backend.prepare_prefill_shared_read_snapshot(batch, tokens)
        backend.init_forward_metadata_in_graph(batch)
        for layer in shape.layers:
            out = backend.forward(q, k, v, layer, batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return out

    return step


def row_of(
    shape: Shape, able: Mapping[str, type[AttentionBackend]], device: torch.device, rounds: int
) -> dict[str, object]:
    """What is printed of one step. AssertionError if two backends do not agree."""
    serving = {name: cls for name, cls in able.items() if not against(cls, shape, device)}
    steps = {name: step_of(cls, shape, device) for name, cls in serving.items()}
    expected = steps[REFERENCE]()
    for name, step in steps.items():
        difference = (step() - expected).abs().max() / expected.abs().max()
        assert difference <= TOLERANCE, (name, str(shape), float(difference))

    def several(step: Callable[[], Any]) -> None:
        for _ in range(CALLS):
            step()

    times = take_turns({name: partial(several, step) for name, step in steps.items()}, rounds)
    base = times.pop(REFERENCE)
    row: dict[str, object] = {"step": str(shape), f"{REFERENCE} ms": base.wall / CALLS * 1e3}
    for name, took in times.items():
        row[name] = took.wall / base.wall
        row[f"{name}, processor"] = took.cpu / base.cpu
    return row


def rows(given: Any, able: Mapping[str, type[AttentionBackend]]) -> Iterator[dict[str, object]]:
    device = torch.device(given.device)
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    fast = {name: cls for name, cls in able.items() if not (interpreted and name == "triton")}
    for shape in TINY:
        yield {**row_of(shape, able, device, given.rounds), "step": f"tiny: {shape}"}
    for shape in SHAPES[:: 3 if given.quick else 1]:
        yield row_of(shape, fast, device, 1 if given.quick else given.rounds)


def main() -> None:
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where it runs")
    given = parse(parser)
    able, unable = classes(torch.device(given.device))
    with torch.inference_mode():
        found = list(rows(given, able))
    notes = {name: cls.note() for name, cls in able.items() if hasattr(cls, "note")}
    for name, note in {**notes, **{n: f"left out: {why}" for n, why in unable.items()}}.items():
        print(f"{name}: {note}")
    print()
    report("backends", found, backends=list(able), left_out=unable, threads=given.threads)


if __name__ == "__main__":
    main()
