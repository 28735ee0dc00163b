"""A timeline of the real scheduler, fence and runner in virtual time: who was busy with what, when.

The costs below are chosen; the order of everything, and who waits for whom, is what the code does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import torch

from warcore import AttentionBackend, EngineConfig, SamplingParams, SharedReadEnds
from warcore.assembly import assemble
from warcore.device.virtual import VirtualDevice
from warcore.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PREPARE, COLLECT, COPY, WRITE, METADATA, BODY = 60.0, 20.0, 20.0, 40.0, 40.0, 160.0
"""Microseconds that each takes: choosing a batch, settling results, a copy of host values, a write
of the tables, a backend's metadata, and the layers of one forward."""

WRITES: Final = {"_copy": COPY, "SharedBuffers._write_pages": WRITE}


@attrs.frozen
class Span:
    """Somebody was busy from `start` to `end`, in microseconds."""

    lane: str
    """host, schedule or forward."""
    what: str
    """prepare, collect, write, wait, read or body."""
    start: float
    end: float


class Timed(AttentionBackend):
    """Reads its rows in the metadata and says so; takes time, and computes nothing."""

    reads_late = False
    device: VirtualDevice
    spans: list[Span]

    def shared_read_ends(self, forward_mode: object) -> SharedReadEnds:  # noqa: ARG002
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        self.ctx.shared.req_to_token.index_select(0, batch.rows)
        self._spend("body" if self.reads_late else "read", METADATA)

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:  # noqa: ARG002
        self._spend("read" if self.reads_late else "body", BODY / len(self.ctx.kv))
        return torch.zeros_like(q)

    def _spend(self, what: str, us: float) -> None:
        start = self.device.time()
        self.device.spend(us)
        self.spans.append(Span("forward", what, start, self.device.time()))


class Clerk:
    """The device's observer: charges the schedule stream's writes, and notes writes and waits."""

    def __init__(self, device: VirtualDevice, spans: list[Span]) -> None:
        self._device = device
        self._spans = spans
        self._began: dict[int, tuple[str, float]] = {}

    def started(self, stream: Any, pending: Any) -> None:
        if stream.name != "schedule":
            return
        what = repr(pending).partition(" ")[0]
        self._began[id(pending)] = what, self._device.time()
        self._device.spend(WRITES.get(what, 0.0))

    def finished(self, stream: Any, pending: Any) -> None:
        what, start = self._began.pop(id(pending), ("", 0.0))
        end = self._device.time()
        if what and end > start:
            kind = "wait" if what == "ReadFence.wait" else "write"
            self._spans.append(Span(stream.name, kind, start, end))

    def submitted(self, stream: Any, pending: Any) -> None: ...
    def joined(self, pending: Any) -> None: ...
    def recorded(self, stream: Any, ticket: Any) -> None: ...
    def waited(self, stream: Any, ticket: Any) -> None: ...


def run(fence: str, *, reads_late: bool = False, steps: int = 12) -> list[Span]:
    """The spans of one request that decodes for `steps` steps, a page of one token each.

    fence: "declared" or "coarse". reads_late: the backend breaks its word and reads in the body.
    """
    device, spans = VirtualDevice(), []
    attributes = {"device": device, "spans": spans, "reads_late": reads_late}
    backend = type("Timed", (Timed,), attributes)
    config = EngineConfig(model="random:tiny", backend=backend, fence=fence, page_size=1)
    assembly = assemble(config, device=device)
    core = assembly.scheduler
    device.observers = Clerk(device, spans)
    for name, what, us in (("next_batch", "prepare", PREPARE), ("collect", "collect", COLLECT)):
        setattr(core, name, _timed(getattr(core, name), what, us, device, spans))
    params = SamplingParams(max_new_tokens=steps, ignore_eos=True)
    tokenizer = assembly.model.tokenizer
    core.add(Request.new(0, None, [1, 2], params, tokenizer=tokenizer, max_context=64, seed=0))
    while core.has_work:
        assembly.loop(core)
    device.close()
    return spans


def _timed(
    method: Callable[..., Any], what: str, us: float, device: VirtualDevice, spans: list[Span]
) -> Callable[..., Any]:
    """`method`, which takes the host `us` microseconds once what it waits for is there."""

    def timed(*args: Any) -> Any:
        value = method(*args)
        start = device.now
        device.spend(us)
        spans.append(Span("host", what, start, device.now))
        return value

    return timed


def forwards(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Start and end of each forward, in order. A forward begins with its metadata."""
    parts = sorted((s for s in spans if s.lane == "forward"), key=lambda s: s.start)
    steps = parts[0 :: len(parts) // sum(s.lane == "host" and s.what == "collect" for s in spans)]
    ends = [*(s.start for s in steps[1:]), parts[-1].end + 1]
    return [
        (step.start, max(p.end for p in parts if step.start <= p.start < end))
        for step, end in zip(steps, ends, strict=True)
    ]


def collisions(spans: Sequence[Span]) -> Iterator[tuple[float, float]]:
    """When the tables are written while a forward reads them."""
    whole = merged(spans)
    for write in (s for s in whole if s.what == "write"):
        for read in (s for s in whole if s.what == "read"):
            start, end = max(write.start, read.start), min(write.end, read.end)
            if start < end:
                yield start, end


def merged(spans: Iterable[Span]) -> list[Span]:
    """Neighbours of one lane and kind as one span; each prepared step stays its own."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.lane, s.what, s.start)):
        last = found[-1] if found else None
        joins = last and (last.lane, last.what, last.end) == (span.lane, span.what, span.start)
        if joins and span.what != "prepare":
            found[-1] = attrs.evolve(last, end=span.end)
        else:
            found.append(span)
    return found
