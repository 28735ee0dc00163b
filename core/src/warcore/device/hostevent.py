"""Events and latches of the host device, and what a thread knows of its own work."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from warcore.device.base import Event, Latch, Stream, Ticket
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from warcore.device.host import HostDevice
    from warcore.device.hostgraph import HostGraph
    from warcore.device.hoststream import HostStream
    from warcore.device.turns import Turns


class ThreadState(threading.local):
    """Of each thread: the stream whose work it runs, and the graph that it is capturing."""

    stream: Stream | None = None
    capture: HostGraph | None = None


class HostEvent(Event):
    """A position in a host stream.

    Each record has its own generation, and those not passed yet are kept one by one: the event may
    be recorded on two streams, and then a later record can be passed before an earlier one.
    """

    def __init__(self, device: HostDevice, number: int, *, external: bool) -> None:
        self.external = external
        self.number = number
        self._device = device
        self._generation = 0
        self._lock = threading.Lock()
        self._unreached: set[int] = set()
        self._captured: set[int] = set()
        self._armed: list[int] = []

    def __repr__(self) -> str:
        return f"{'external ' if self.external else ''}event {self.number}"

    @property
    def generation(self) -> int:
        return self._generation

    def record(self, stream: Stream | None = None) -> Ticket:
        device = self._device
        local = device.local
        target: HostStream | None = local.stream if stream is None else stream  # type: ignore[assignment]
        if target is None:
            raise DeviceError(
                f"{self!r} was recorded outside submitted work, and no stream was named",
                next="event.record(stream), or record within stream.submit(...)",
            )
        if local.capture is not None:
            return self._record_in(local.capture)
        now = target.acts_now()
        ticket = self._next(None if now else self._unreached)
        if now:
            if device.observer is not None:
                device.observer.recorded(target, ticket)
        else:
            target.enqueue(partial(self._pass, ticket, target))
        device.turns.changed()
        device.turns.switch()
        return ticket

    def rearm(self) -> Ticket:
        if not self.external:
            raise DeviceError(
                f"{self!r} is not external: no replay can reach it",
                next="device.event(external=True)",
            )
        if not self._captured:
            raise DeviceError(
                f"{self!r} is in no graph yet", next="record it within a capture first"
            )
        if self._device.local.stream is None:
            raise DeviceError(
                f"{self!r} was re-armed outside submitted work: "
                "which replay it belongs to would be a matter of luck",
                next="re-arm in the submitted work that replays",
            )
        ticket = self._next(self._unreached)
        self._armed.append(ticket.generation)
        return ticket

    def disarm(self) -> bool:
        stream = self._device.local.stream
        if stream is None:
            raise DeviceError(
                f"{self!r} was disarmed outside submitted work",
                next="disarm it in the submitted work that re-armed it",
            )
        armed = bool(self._armed)
        if armed:
            self.pass_armed(stream)
        return armed

    def reached(self, generation: int) -> bool:
        # Whoever asks again and again until it is true must let the others run.
        self._device.turns.switch()
        return generation not in self._unreached

    def synchronize(self, generation: int | None = None) -> None:
        ticket = Ticket(self, self._generation if generation is None else generation)
        self.await_ticket(ticket, self._device.local.stream)

    def await_ticket(self, ticket: Ticket, stream: Stream | None) -> None:
        """Block the calling thread until `ticket` is passed; `stream` is who then goes on."""
        self.check(ticket.generation)
        device = self._device
        if ticket.generation in self._unreached:
            generation = ticket.generation
            device.turns.block(
                lambda: generation not in self._unreached, lambda: self.describe(generation)
            )
        else:
            device.turns.switch()
        if device.observer is not None and ticket.generation:
            device.observer.waited(stream, ticket)

    def check(self, generation: int) -> None:
        """DeviceError for a ticket that nothing can ever reach."""
        if generation in self._captured:
            raise DeviceError(
                f"{self.describe(generation)} belongs to a capture and is never reached",
                next="wait for the ticket that rearm() gives before the replay",
            )

    def describe(self, generation: int) -> str:
        """Name one ticket in a message."""
        armed = ", armed for a replay" if generation in self._armed else ""
        return f"record {generation} of {self!r}{armed}"

    def pass_armed(self, stream: Stream) -> None:
        """A replay on `stream` has come to this event's node, or never will.

        Whatever was armed in earlier work whose replay never came is passed too: later than that
        work meant, so never too early, and nobody waits in vain.
        """
        armed, self._armed = self._armed, []
        for generation in armed:
            self._pass(Ticket(self, generation), stream)

    def _record_in(self, graph: HostGraph) -> Ticket:
        if not self.external:
            raise DeviceError(
                f"{self!r} was recorded within a capture, but is not external",
                next="device.event(external=True)",
            )
        ticket = self._next(self._unreached)
        self._captured.add(ticket.generation)
        graph.add_marker(self)
        return ticket

    def _next(self, among: set[int] | None) -> Ticket:
        with self._lock:
            self._generation = generation = self._generation + 1
            if among is not None:
                among.add(generation)
        return Ticket(self, generation)

    def _pass(self, ticket: Ticket, stream: Stream) -> None:
        device = self._device
        # The observer first: whoever waits must find what it notes down here.
        if device.observer is not None:
            device.observer.recorded(stream, ticket)
        self._unreached.discard(ticket.generation)
        device.turns.changed()


class HostLatch(Latch):
    """A latch for any rule of who may run."""

    def __init__(self, turns: Turns, number: int) -> None:
        self._turns = turns
        self._number = number
        self._open = False

    def set(self) -> None:
        self._open = True
        self._turns.changed()

    def wait(self) -> None:
        if self._open:
            self._turns.switch()
        else:
            self._turns.block(lambda: self._open, lambda: f"latch {self._number}")

    @property
    def is_set(self) -> bool:
        self._turns.switch()
        return self._open
