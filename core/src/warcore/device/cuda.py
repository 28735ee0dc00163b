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

from warcore.device.base import Device, Stream
from warcore.device.cudaevent import CudaEvent
from warcore.device.cudagraph import CudaGraph
from warcore.device.cudapool import CudaPool
from warcore.device.hostevent import HostLatch, ThreadState
from warcore.device.outcome import Outcome
from warcore.device.turns import InlineTurns
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.base import Ticket
    from warcore.device.graph import GraphPool

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
        if device.observer is not None:
            device.observer.submitted(self, pending)
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
        if self._device.observer is not None:
            self._device.observer.waited(self, ticket)


class CudaDevice(Device):
    """The current CUDA device of torch."""

    name: ClassVar[str] = "cuda"
    warms_up: ClassVar[bool] = True

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device", next="--device host")
        self.supports_graphs = True
        self.supports_external_events = _has_external_events()
        self.closed = False
        self.keeps_graphs = False
        """Whether graphs captured from now on can be read node by node, for a test."""
        self.local = ThreadState()
        self._torch_device = torch.device("cuda", torch.cuda.current_device())
        self._turns = InlineTurns()
        self.streams: list[CudaStream] = []
        self._events = 0
        self._latches = 0

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    def stream(self, name: str) -> CudaStream:
        if self.closed:
            raise DeviceError(f"the device is closed: it makes no stream {name}")
        stream = CudaStream(self, name, self._draw(name))
        self.streams.append(stream)
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

    def graph_pool(self) -> CudaPool:
        return CudaPool(self._torch_device, keeps_graphs=self.keeps_graphs)

    def graph(self, pool: GraphPool | None = None) -> CudaGraph:
        return CudaGraph(self, self.graph_pool() if pool is None else pool)  # type: ignore[arg-type]

    def current_stream(self) -> Stream | None:
        return self.local.stream

    @property
    def capturing(self) -> bool:
        return self.local.capture is not None

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
        taken = {stream.raw.cuda_stream for stream in self.streams}
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
