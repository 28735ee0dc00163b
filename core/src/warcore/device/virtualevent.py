"""Events in virtual time: each record keeps the time at which it is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.device.base import Event, Ticket
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from warcore.device.base import Stream
    from warcore.device.virtual import VirtualDevice, VirtualStream

_MANY_STAMPS = 16


class VirtualEvent(Event):
    """A position in a stream's time, recorded again and again."""

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
        if generation in self._armed or generation in self._captured:
            return False
        return self._stamps.get(generation, 0.0) <= self._device.time()

    def synchronize(self, generation: int | None = None) -> None:
        generation = self._generation if generation is None else generation
        device = self._device
        device.move_to(self.time_of(generation))
        if device.observer is not None and generation:
            device.observer.waited(device.local.stream, Ticket(self, generation))

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
        if self._device.observer is not None:
            self._device.observer.recorded(stream, ticket)
