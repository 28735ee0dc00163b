"""The virtual device: the real scheduler and fence code, in virtual time.

Work runs at once, on the caller's thread. Time is bookkeeping: the host and each stream have a
clock in microseconds, and submitting, recording and waiting move them as an asynchronous device
would. So a claim about overlap is a sum, the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from warcore.device.base import Device, Latch, Stream
from warcore.device.hostevent import ThreadState
from warcore.device.outcome import Outcome
from warcore.device.virtualevent import VirtualEvent
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from warcore.device.base import Ticket
    from warcore.device.graph import Graph, GraphPool
    from warcore.device.hostgraph import HostGraph
    from warcore.device.hostpool import HostPool

T = TypeVar("T")


class VirtualStream(Stream):
    """A stream with a clock: when everything submitted so far is done, in microseconds."""

    def __init__(self, device: VirtualDevice, name: str, cost: float) -> None:
        self.name = name
        self.device = device
        self.clock = 0.0
        self.busy = 0.0
        self._cost = cost

    def __repr__(self) -> str:
        return f"stream {self.name}"

    def submit(self, fn: Callable[..., Any], *args: Any) -> VirtualPending:
        device = self.device
        if device.closed:
            raise DeviceError(f"the device is closed: {self!r} takes no more work")
        pending = VirtualPending(device, self, fn, args)
        if device.observer is not None:
            device.observer.submitted(self, pending)
        self.not_before(device.time())
        self.spend(self._cost)
        local = device.local
        outer, local.stream = local.stream, self
        try:
            if torch.is_inference_mode_enabled():
                pending.run()
            else:
                with torch.inference_mode():
                    pending.run()
        finally:
            local.stream = outer
            pending.finished = self.clock
        return pending

    def wait(self, ticket: Ticket) -> None:
        device = self.device
        if device.local.capture is not None:
            raise DeviceError(
                f"a wait for {ticket.event!r} within a capture could not be replayed",
                next="wait before the replay",
            )
        event: VirtualEvent = ticket.event  # type: ignore[assignment]
        self.not_before(event.time_of(ticket.generation))
        if device.observer is not None:
            device.observer.waited(self, ticket)

    def not_before(self, time: float) -> None:
        """What comes next starts at `time` or later."""
        if time > self.clock:  # noqa: PLR1730 - max() costs three times as much, and this is hot
            self.clock = time

    def spend(self, us: float) -> None:
        """Be busy for `us` microseconds."""
        self.clock += us
        self.busy += us


class VirtualPending(Outcome):
    """Work that has run; in virtual time it is done at `finished`."""

    finished: float = 0.0

    def result(self) -> Any:
        device: VirtualDevice = self.device  # type: ignore[assignment]
        device.move_to(self.finished)
        return super().result()


class VirtualLatch(Latch):
    """A latch that remembers when it opened."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self._opened: float | None = None

    def set(self) -> None:
        if self._opened is None:
            self._opened = self._device.time()

    def wait(self) -> None:
        if self._opened is None:
            raise DeviceError(
                "a latch can never be reached: a virtual device runs work when it is submitted, "
                "and nothing that is still to come can be waited for",
                next="wait after the work that opens it",
            )
        self._device.move_to(self._opened)

    @property
    def is_set(self) -> bool:
        return self._opened is not None


class VirtualDevice(Device):
    """Streams in virtual time.

    costs: microseconds that each function submitted to the stream of that name takes, charged
    before it runs; a stream without an entry takes none. `spend` charges more, piece by piece.
    """

    name: ClassVar[str] = "virtual"

    def __init__(self, costs: Mapping[str, float] | None = None) -> None:
        self.supports_graphs = True
        self.supports_external_events = True
        self.closed = False
        self.local = ThreadState()
        self.now = 0.0
        """The host's clock, in microseconds."""
        self._costs = dict(costs or {})
        self.streams: list[VirtualStream] = []
        self._events = 0

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def stream(self, name: str) -> VirtualStream:
        if self.closed:
            raise DeviceError(f"the device is closed: it makes no stream {name}")
        stream = VirtualStream(self, name, self._costs.get(name, 0.0))
        self.streams.append(stream)
        return stream

    def event(self, *, external: bool = False) -> VirtualEvent:
        self._events += 1
        return VirtualEvent(self, self._events, external=external)

    def latch(self) -> VirtualLatch:
        return VirtualLatch(self)

    def graph_pool(self) -> HostPool:
        from warcore.device.hostpool import HostPool

        return HostPool()

    def graph(self, pool: GraphPool | None = None) -> Graph:
        from warcore.device.hostgraph import HostGraph

        return HostGraph(self, self.graph_pool() if pool is None else pool)  # type: ignore[arg-type]

    def current_stream(self) -> Stream | None:
        return self.local.stream

    @property
    def capturing(self) -> bool:
        return self.local.capture is not None

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        # A normal tensor even within submitted work: the host writes it outside inference mode.
        with torch.inference_mode(mode=False):
            return torch.empty(count, dtype=dtype)

    def spend(self, us: float) -> None:
        """Take `us` microseconds of the current stream, or of the host outside submitted work.

        Within a capture it becomes part of the graph: each replay takes as long again.
        """
        stream: VirtualStream | None = self.local.stream  # type: ignore[assignment]
        if stream is None:
            self.now += us
            return
        stream.spend(us)
        capture: HostGraph | None = self.local.capture
        if capture is not None:
            capture.add(lambda: self.spend(us))

    def taking(self, us: float, function: Callable[..., T]) -> Callable[..., T]:
        """`function`, after which whoever calls it is busy for another `us` microseconds."""

        def takes(*args: Any) -> T:
            value = function(*args)
            self.spend(us)
            return value

        return takes

    def time(self) -> float:
        """The clock of whoever runs: the current stream, else the host; in microseconds."""
        stream: VirtualStream | None = self.local.stream  # type: ignore[assignment]
        return self.now if stream is None else stream.clock

    def move_to(self, time: float) -> None:
        """Whoever runs has waited until `time`."""
        stream: VirtualStream | None = self.local.stream  # type: ignore[assignment]
        if stream is not None:
            stream.not_before(time)
        elif time > self.now:
            self.now = time

    def synchronize(self) -> None:
        for stream in self.streams:
            self.move_to(stream.clock)

    def close(self) -> None:
        self.closed = True
