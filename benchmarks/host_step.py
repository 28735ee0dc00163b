"""What the host does in one decode step when the model costs nothing, at 32 running requests.

    python benchmarks/host_step.py [--quick] [--rounds N] [--requests N]

The model returns the same logits at every step and the backend does nothing, so what is left is
the engine: choosing the batch, page growth, the step's index tensors, sampling of a tiny
vocabulary, the relay, results. The device runs inline: all of it is the time of one thread. The
fence and its barrier are the difference between the overlap loop and the same loop without them.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch
from measure import arguments, parse, report

import warcore.assembly
from warcore import (
    AttentionBackend,
    Engine,
    EngineConfig,
    ForwardBatch,
    Layer,
    Model,
    ModelContext,
    ModelFamily,
    ModelInfo,
    NoOptions,
    Output,
    SamplingParams,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore.scheduler import Scheduler

AIM_US, AIM_FENCE_US = 200, 15
VOCAB, CONTEXT, PROMPT = 64, 2048, 8
INFO = ModelInfo("null", (Layer(0, 1, 1, 8, 1.0),), VOCAB, 8, CONTEXT, 1)


class NullTokenizer:
    eos_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [1] * len(text)

    def decode(self, ids: Sequence[int]) -> str:
        return "." * len(ids)

    def chat(self, prompt: str, system: str | None) -> list[int]:  # noqa: ARG002
        return self.encode(prompt)


class NullModel(Model):
    """Logits that exist already."""

    def __init__(self) -> None:
        self.info = INFO
        self.tokenizer = NullTokenizer()
        self._logits: dict[int, torch.Tensor] = {}

    def forward(
        self,
        batch: ForwardBatch,
        attend: Callable[..., torch.Tensor],  # noqa: ARG002
        hidden_layers: tuple[int, ...] = (),  # noqa: ARG002
    ) -> Output:
        if batch.size not in self._logits:
            self._logits[batch.size] = torch.zeros(batch.size, VOCAB)
        return Output(self._logits[batch.size])


class Null(ModelFamily):
    Options = NoOptions

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        return ref

    @classmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:  # noqa: ARG003
        return INFO

    @classmethod
    def load(cls, ref: str, ctx: ModelContext) -> Model:  # noqa: ARG003
        return NullModel()


class NullBackend(AttentionBackend):
    """Votes as the base class does, and is never asked to attend."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,  # noqa: ARG002
        v: torch.Tensor,  # noqa: ARG002
        layer: Layer,  # noqa: ARG002
        batch: ForwardBatch,  # noqa: ARG002
    ) -> torch.Tensor:
        return q


def bare_loop(core: Scheduler) -> None:
    """The overlap loop without its fence. Right only because nothing here reads a table late."""
    batch = core.next_batch()
    launch = core.launch(batch, fenced=False) if batch else None
    if core.in_flight:
        core.collect(core.in_flight)
    core.in_flight = launch


def engine_with(loop: Callable[[Scheduler], None]) -> Engine:
    """An inline engine of nulls that runs `loop`."""
    original = warcore.assembly.overlap_loop
    warcore.assembly.overlap_loop = loop
    try:
        return Engine(
            EngineConfig(
                model=Null, backend=NullBackend, dtype="float32", device="host", host="inline"
            )
        )
    finally:
        warcore.assembly.overlap_loop = original


def decode(engine: Engine, requests: int, steps: int) -> tuple[float, float]:
    """Microseconds of a decode step with `requests` running: typical wall, and mean processor time.

    Every 16th step gives each request a page: the mean counts that, the median does not.
    """
    params = SamplingParams(max_new_tokens=steps + 8, ignore_eos=True)
    numbers = [engine.add_request([1] * PROMPT, params, raw=True) for _ in range(requests)]
    for _ in range(4):  # the prefill, and the pipeline fills
        engine.step()
    times, cpu = [], time.thread_time()
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1e6)
    cpu = (time.thread_time() - cpu) * 1e6 / steps
    for number in numbers:
        engine.abort(number)
    while engine.has_work:
        engine.step()
    return median(times), cpu


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--requests", type=int, default=32)
    given = parse(parser)
    rounds, steps = (3, 50) if given.quick else (given.rounds, 200)
    loops = {
        "overlap loop": warcore.assembly.overlap_loop,
        "  without fence and barrier": bare_loop,
        "normal loop": None,
    }
    engines = {name: engine_with(loop) for name, loop in loops.items() if loop}
    engines["normal loop"] = Engine(
        EngineConfig(
            model=Null,
            backend=NullBackend,
            dtype="float32",
            device="host",
            host="inline",
            loop="normal",
        )
    )
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            both = decode(engine, given.requests, steps)
            if number:
                times[name].append(both)
    for engine in engines.values():
        engine.close()
    with_fence, without = list(times.values())[:2]
    times["fence and barrier"] = [
        (fenced[0] - bare[0], fenced[1] - bare[1])
        for fenced, bare in zip(with_fence, without, strict=True)
    ]
    rows = [
        {
            "": name,
            "us a step": median(wall for wall, _ in each),
            "cpu us": median(cpu for _, cpu in each),
            "aim": {"overlap loop": AIM_US, "fence and barrier": AIM_FENCE_US}.get(name),
        }
        for name, each in times.items()
    ]
    report("host_step", rows, steps=steps, **vars(given))


if __name__ == "__main__":
    main()
