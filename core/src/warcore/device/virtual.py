"""The virtual device: the real scheduler and fence code, in virtual time.

Work runs at once, on the caller's thread. Time is bookkeeping: the host and each stream have a
clock in microseconds, and submitting, recording and waiting move them as an asynchronous device
would. So a claim about overlap is a sum, the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from warcore.device.base import Device, Event, Latch, Stream, Ticket
from warcore.device.hostevent import ThreadState
from warcore.device.outcome import Outcome
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from warcore.device.base import Graph
    from warcore.device.hostgraph import HostGraph

_MANY_STAMPS = 16


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
        if device.observers is not None:
            device.observers.submitted(self, pending)
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
        if device.observers is not None:
            device.observers.waited(self, ticket)

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


class VirtualEvent(Event):
    """A position in a stream's time. Each record keeps the time at which it is reached."""

    def __init__(self, device: VirtualDevice, number: int, *, external: bool) -> None:
        self.external = external
        self._device = device
        self._number = number
        self._generation = 0
        self._stamps: dict[int, float] = {}
        self._captured: set[int] = set()
        self._armed: list[int] = []

    def __repr__(self) -> str:
        return f"{'external ' if self.external else ''}event {self._number}"

    @property
    def generation(self) -> int:
        return self._generation

    def record(self, stream: Stream | None = None) -> Ticket:
        device = self._device
        target: VirtualStream | None = device.local.stream if stream is None else stream  # type: ignore[assignment]
        if target is None:
            raise DeviceError(
                f"{self!r} was recorded outside submitted work, and no stream was named",
                next="event.record(stream), or record within stream.submit(...)",
            )
        self._generation += 1
        ticket = Ticket(self, self._generation)
        if device.local.capture is not None:
            if not self.external:
                raise DeviceError(
                    f"{self!r} was recorded within a capture, but is not external",
                    next="device.event(external=True)",
                )
            self._captured.add(ticket.generation)
            device.local.capture.add_marker(self)
            return ticket
        target.not_before(device.time())
        self._stamp(ticket, target)
        return ticket

    def rearm(self) -> Ticket:
        if not self._captured or self._device.local.stream is None:
            raise DeviceError(
                f"{self!r} cannot be re-armed: no graph holds it, or this is no submitted work",
                next="record it as an external event within a capture, and re-arm it in the "
                "submitted work that replays",
            )
        self._generation += 1
        self._armed.append(self._generation)
        return Ticket(self, self._generation)

    def reached(self, generation: int) -> bool:
        if generation in self._armed or generation in self._captured:
            return False
        return self._stamps.get(generation, 0.0) <= self._device.time()

    def synchronize(self, generation: int | None = None) -> None:
        generation = self._generation if generation is None else generation
        device = self._device
        device.move_to(self.time_of(generation))
        if device.observers is not None and generation:
            device.observers.waited(device.local.stream, Ticket(self, generation))

    def time_of(self, generation: int) -> float:
        """When that record is reached; DeviceError if nothing can reach it any more."""
        if generation in self._armed or generation in self._captured:
            raise DeviceError(
                f"record {generation} of {self!r} can never be reached: "
                "it belongs to a capture, or no replay has followed its re-arming",
                next="wait after the replay",
            )
        return self._stamps.get(generation, 0.0)

    def pass_armed(self, stream: Stream) -> None:
        """A replay on `stream` has come to this event's node."""
        armed, self._armed = self._armed, []
        for generation in armed:
            self._stamp(Ticket(self, generation), stream)  # type: ignore[arg-type]

    def _stamp(self, ticket: Ticket, stream: VirtualStream) -> None:
        if len(self._stamps) >= _MANY_STAMPS:
            # What lies before the host's time orders nothing: all that is submitted from now on
            # starts later than that anyway.
            now = self._device.now
            self._stamps = {g: time for g, time in self._stamps.items() if time > now}
        self._stamps[ticket.generation] = stream.clock
        if self._device.observers is not None:
            self._device.observers.recorded(stream, ticket)


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
        self._streams: list[VirtualStream] = []
        self._events = 0

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def stream(self, name: str) -> VirtualStream:
        if self.closed:
            raise DeviceError(f"the device is closed: it makes no stream {name}")
        stream = VirtualStream(self, name, self._costs.get(name, 0.0))
        self._streams.append(stream)
        return stream

    def event(self, *, external: bool = False) -> VirtualEvent:
        self._events += 1
        return VirtualEvent(self, self._events, external=external)

    def latch(self) -> VirtualLatch:
        return VirtualLatch(self)

    def graph(self) -> Graph:
        from warcore.device.hostgraph import HostGraph

        return HostGraph(self)

    def current_stream(self) -> Stream | None:
        return self.local.stream

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
        for stream in self._streams:
            self.move_to(stream.clock)

    def close(self) -> None:
        self.closed = True
