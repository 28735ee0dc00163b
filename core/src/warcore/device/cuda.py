"""The CUDA device: torch.cuda streams, events and graphs behind the same protocol.

Submitting runs the function at once on the calling thread, inside the stream's context; what it
launches is asynchronous. A stream's wait binds to the newest record of an event at the moment of
the call, so a ticket is honoured only while its record is the newest one: any other wait would
silently bind to another launch, and is refused.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from warcore.device.base import Device, Event, Stream, Ticket
from warcore.device.cudagraph import CudaGraph
from warcore.device.hostevent import HostLatch, ThreadState
from warcore.device.outcome import Outcome
from warcore.device.turns import InlineTurns
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("warcore.device")

_POOL = 32
"""How many streams torch makes per priority before it hands out the first one again."""


class CudaStream(Stream):
    """A CUDA stream of its own."""

    def __init__(self, device: CudaDevice, name: str, raw: torch.cuda.Stream) -> None:
        self.name = name
        self.raw = raw
        self._device = device

    def __repr__(self) -> str:
        return f"stream {self.name}"

    def submit(self, fn: Callable[..., Any], *args: Any) -> Outcome:
        device = self._device
        if device.closed:
            raise DeviceError(f"the device is closed: {self!r} takes no more work")
        pending = Outcome(device, self, fn, args)
        if device.observers is not None:
            device.observers.submitted(self, pending)
        local = device.local
        outer, local.stream = local.stream, self
        try:
            with torch.inference_mode(), torch.cuda.stream(self.raw):
                pending.run()
        finally:
            local.stream = outer
        return pending

    def wait(self, ticket: Ticket) -> None:
        event: CudaEvent = ticket.event  # type: ignore[assignment]
        if self._device.local.capture is not None:
            raise DeviceError(
                f"a wait for {event!r} within a capture could not be replayed",
                next="wait before the replay",
            )
        event.check(ticket.generation)
        if ticket.generation:
            self.raw.wait_event(event.raw)
        if self._device.observers is not None:
            self._device.observers.waited(self, ticket)


class CudaEvent(Event):
    """A CUDA event and the generation of its newest record.

    external: recorded within a capture it becomes a node of the graph, and every launch of that
    graph records it anew.
    """

    def __init__(self, device: CudaDevice, number: int, *, external: bool) -> None:
        self.external = external
        kind: Any = torch.cuda.Event
        self.raw = kind(external=True) if external else kind()
        self._device = device
        self._number = number
        self._generation = 0
        self._recorded = 0
        self._captured: set[int] = set()

    def __repr__(self) -> str:
        return f"{'external ' if self.external else ''}event {self._number}"

    @property
    def generation(self) -> int:
        return self._generation

    def record(self, stream: Stream | None = None) -> Ticket:
        device = self._device
        target: CudaStream | None = device.local.stream if stream is None else stream  # type: ignore[assignment]
        if target is None:
            raise DeviceError(
                f"{self!r} was recorded outside submitted work, and no stream was named",
                next="event.record(stream), or record within stream.submit(...)",
            )
        capture: CudaGraph | None = device.local.capture  # type: ignore[assignment]
        if capture is not None and not self.external:
            raise DeviceError(
                f"{self!r} was recorded within a capture, but is not external",
                next="device.event(external=True)",
            )
        self.raw.record(target.raw)
        self._generation += 1
        ticket = Ticket(self, self._generation)
        if capture is not None:
            self._captured.add(self._generation)
            capture.markers.append(self)
            return ticket
        self._recorded = self._generation
        if device.observers is not None:
            device.observers.recorded(target, ticket)
        return ticket

    def rearm(self) -> Ticket:
        if not self._captured or self._device.local.stream is None:
            raise DeviceError(
                f"{self!r} cannot be re-armed: no graph holds it, or this is no submitted work",
                next="record it as an external event within a capture, and re-arm it in the "
                "submitted work that replays",
            )
        self._generation += 1
        return Ticket(self, self._generation)

    def reached(self, generation: int) -> bool:
        if generation > self._recorded or generation in self._captured:
            return False
        self.check(generation)
        return generation == 0 or bool(self.raw.query())

    def synchronize(self, generation: int | None = None) -> None:
        generation = self._generation if generation is None else generation
        self.check(generation)
        if generation:
            self.raw.synchronize()
            device = self._device
            if device.observers is not None:
                device.observers.waited(device.local.stream, Ticket(self, generation))

    def check(self, generation: int) -> None:
        """DeviceError unless `generation` is what CUDA would wait for now."""
        if generation in self._captured:
            why = "belongs to a capture and is never reached"
            remedy = "wait for the ticket that rearm() gives before the replay"
        elif generation > self._recorded:
            why = "can never be reached: its replay has not been launched"
            remedy = "wait after the replay"
        elif generation < self._recorded and generation:
            why = f"was overwritten by record {self._recorded}, which CUDA would wait for instead"
            remedy = "hold tickets in an EventRing, which refuses to overwrite them"
        else:
            return
        raise DeviceError(f"record {generation} of {self!r} {why}", next=remedy)

    def launched(self, stream: CudaStream) -> None:
        """A replay on `stream` that holds this event was launched."""
        if self._recorded == self._generation:
            self._generation += 1
        self._recorded = self._generation
        if self._device.observers is not None:
            self._device.observers.recorded(stream, Ticket(self, self._recorded))


class CudaDevice(Device):
    """The current CUDA device of torch."""

    name: ClassVar[str] = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device", next="--device host")
        self.supports_graphs = True
        self.supports_external_events = _has_external_events()
        self.closed = False
        self.local = ThreadState()
        self._torch_device = torch.device("cuda", torch.cuda.current_device())
        self._turns = InlineTurns()
        self._streams: list[CudaStream] = []
        self._events = 0
        self._latches = 0

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    def stream(self, name: str) -> CudaStream:
        if self.closed:
            raise DeviceError(f"the device is closed: it makes no stream {name}")
        stream = CudaStream(self, name, self._draw(name))
        self._streams.append(stream)
        return stream

    def event(self, *, external: bool = False) -> CudaEvent:
        if external and not self.supports_external_events:
            raise DeviceError(
                f"torch {torch.__version__} has no external events",
                next="ask supports_external_events first; without a marker a graph is POST_REPLAY",
            )
        self._events += 1
        return CudaEvent(self, self._events, external=external)

    def latch(self) -> HostLatch:
        # Work runs on the thread that submits it, as on an inline host device.
        self._latches += 1
        return HostLatch(self._turns, self._latches)

    def graph(self) -> CudaGraph:
        return CudaGraph(self)

    def current_stream(self) -> Stream | None:
        return self.local.stream

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        # A normal tensor even within submitted work: the host writes it outside inference mode.
        with torch.inference_mode(mode=False):
            return torch.empty(count, dtype=dtype, pin_memory=True)

    def synchronize(self) -> None:
        # The default stream too: weights and tables are filled there before the first step.
        torch.cuda.synchronize(self._torch_device)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self.synchronize()
        except RuntimeError as error:
            # A broken context was reported where it broke; closing must not hide that error.
            _log.warning("the CUDA device was broken when it was closed: %s", error)

    def _draw(self, name: str) -> torch.cuda.Stream:
        """A stream that is none of ours: torch hands out a few of them, round robin."""
        taken = {stream.raw.cuda_stream for stream in self._streams}
        taken.add(torch.cuda.default_stream(self._torch_device).cuda_stream)
        for _ in range(_POOL + 1):
            raw = torch.cuda.Stream(self._torch_device)  # type: ignore[no-untyped-call]
            if raw.cuda_stream not in taken:
                return raw
        raise DeviceError(
            f"no CUDA stream is left for {name}: all {_POOL} that torch hands out are in use",
            next="make fewer streams on one device",
        )


def _has_external_events() -> bool:
    """Whether this build of torch can put an event record into a graph."""
    return "external" in inspect.signature(torch.cuda.Event.__new__).parameters
