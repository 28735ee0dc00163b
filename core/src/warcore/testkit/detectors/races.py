"""RaceDetector: two accesses that nothing orders are a race, whatever the timing was."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import attrs

from warcore.device import Observer
from warcore.testkit.access import Access
from warcore.testkit.detectors.history import History, Touch
from warcore.testkit.detectors.order import Order, device_of, host_of
from warcore.testkit.detectors.race import Race, Races
from warcore.testkit.detectors.used import note
from warcore.testkit.detectors.wrapping import Wrapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from warcore.device import Device, Event, Pending, Stream, Ticket
    from warcore.testkit.access import Kind, Place
    from warcore.testkit.detectors.clocks import Clock

LEAST_SWEEP = 64
"""Touches that are kept before it is worth looking which are behind everybody."""


@attrs.define(eq=False)
class _Work:
    """Submitted work that has not ended."""

    number: int
    """Its place in the order of submission, counted from 1."""
    what: str
    step: int
    stream: Stream
    told: Clock
    begins: list[Callable[[], None]]
    phase: str = ""


class RaceDetector(Observer):
    """An observer of `device`: hears what orders its streams, and is told of accesses.

    Let it watch the device, alone or as one of `Several`. It may be told of accesses from any
    thread; the stream whose work that thread runs, or else the host, made them.
    A context manager: leaving it lets go of the device's methods; what was found stays.
    """

    def __init__(self, device: Device) -> None:
        self.step = 0
        """The step that is prepared now, for the report; 0: nobody counts."""
        self._device = device
        # NOTE: never held while a torch operation runs: a seeded device may switch threads there.
        self._lock = threading.Lock()
        self._order = Order()
        self._history = History(self._order.clocks)
        self._races = Races()
        self._sweep_at = LEAST_SWEEP
        self._submissions = 0
        self._works: dict[int, _Work] = {}
        """By id of the pending, which lives until its work has ended."""
        self._running: dict[Stream | None, list[_Work]] = {}
        self._expected: dict[Stream, list[Callable[[], None]]] = {}
        note("happens-before")
        self._wrapping = Wrapping()
        self._wrapping.after(device, "event", lambda event, **_: self.hear(event))
        self._wrapping.after(device, "synchronize", lambda _: self._all_idle())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the device's methods. Idempotent."""
        self._wrapping.restore()

    @property
    def races(self) -> tuple[Race, ...]:
        """What was found so far: each pair of origins once, the most frequent first."""
        with self._lock:
            return self._races.found()

    @property
    def remembered(self) -> int:
        """How many accesses are kept because something still to come might conflict with them."""
        with self._lock:
            return len(self._history)

    # ---- accesses --------------------------------------------------------------------------------

    def touch(
        self,
        buffer: str,
        kind: Kind,
        start: int,
        stop: int,
        *,
        operation: str = "",
        place: Place | None = None,
        by_host: bool = False,
        base: int = 0,
    ) -> None:
        """Bytes start..stop of `buffer` are read or written, now, by who runs on this thread.

        The rest is as in `see`.
        """
        access = Access(buffer, kind, start, stop, operation=operation, place=place)
        self.see(access, by_host=by_host, base=base)

    def see(self, access: Access, *, by_host: bool = False, base: int = 0) -> None:
        """Take note of an access that happens now, on the calling thread.

        by_host: made by the host code of the running work itself, when it is called, as when Python
        fills pinned memory; False: by the stream, in its order.
        base: where the buffer begins in a space of addresses that buffers of one name share, so
        that memory which is used again is the same memory.
        What a capture records is no access; what its replays do is.
        """
        if access.start >= access.stop or (self._device.capturing and not by_host):
            return
        stream = self._device.current_stream()
        with self._lock:
            touch = self._touch(access, stream, by_host=by_host or stream is None, base=base)
            for earlier in self._history.add(touch):
                self._races.add(earlier, touch)
            if by_host and stream is not None:
                self._order.launch(stream)
            if len(self._history) > self._sweep_at:
                busy = {work.stream for work in self._works.values()}
                self._history.forget(self._order.settled(busy))
                self._sweep_at = max(LEAST_SWEEP, 2 * len(self._history))

    def when_next_starts(self, stream: Stream, act: Callable[[], None]) -> None:
        """Call `act` as the next work that is submitted to `stream` begins, on its thread."""
        with self._lock:
            self._expected.setdefault(stream, []).append(act)

    def hear(self, event: Event) -> None:
        """Note too when host code asks this event, or waits for it, within submitted work.

        The device's events are heard from the moment they are made while the detector watches.
        """

        def passed(reached: bool | None, generation: int | None = None) -> None:
            if reached is not False:
                caller = self._device.current_stream()
                newest = event.generation if generation is None else generation
                with self._lock:
                    self._order.learn(caller, event, newest)

        self._wrapping.after(event, "reached", passed)
        self._wrapping.after(event, "synchronize", passed)

    # ---- the device reports ----------------------------------------------------------------------

    def submitted(self, stream: Stream, pending: Pending) -> None:
        """The past of the host code that submits comes before the work."""
        # A pending names its function first, and forgets it once it has run.
        what = repr(pending).partition(" on stream ")[0]
        caller = self._device.current_stream()
        with self._lock:
            self._submissions += 1
            told = self._order.submit(caller, id(pending))
            begins = self._expected.pop(stream, [])
            self._works[id(pending)] = _Work(
                self._submissions, what, self.step, stream, told, begins
            )

    def started(self, stream: Stream, pending: Pending) -> None:
        """The work begins; what was submitted before the detector watched is not its business."""
        work = self._works.get(id(pending))
        if work is not None:
            with self._lock:
                self._running.setdefault(stream, []).append(work)
                self._order.start(stream, work.told)
            for act in work.begins:
                act()

    def finished(self, stream: Stream, pending: Pending) -> None:
        """The host code of the work has ended; what it launched may not have."""
        with self._lock:
            work = self._works.pop(id(pending), None)
            if work is not None:
                self._running[stream].remove(work)
                self._order.end(stream, id(pending))

    def joined(self, pending: Pending) -> None:
        """Who takes the outcome comes after the host code of the work."""
        caller = self._device.current_stream()
        with self._lock:
            self._order.join(caller, id(pending))

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        """The ticket stands for all that the stream did so far."""
        with self._lock:
            self._order.record(stream, ticket.event, ticket.generation)

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        """What `stream`, or the host, does next comes after the record."""
        with self._lock:
            self._order.wait(stream, ticket.event, ticket.generation)

    def phase(self, stream: Stream | None, name: str) -> None:
        """Accesses from here on are in this phase of the step."""
        with self._lock:
            works = self._running.get(stream)
            if works:
                works[-1].phase = name

    # ---- inside ----------------------------------------------------------------------------------

    def _all_idle(self) -> None:
        with self._lock:
            self._order.all_idle()

    def _touch(self, access: Access, stream: Stream | None, *, by_host: bool, base: int) -> Touch:
        """The access, with what is known of who made it."""
        works = self._running.get(stream)
        work = works[-1] if works else None
        actor = host_of(stream) if by_host or stream is None else device_of(stream)
        known = attrs.evolve(
            access,
            stream=access.stream or ("" if stream is None else stream.name),
            phase=access.phase or ("" if work is None else work.phase),
            seen_by=access.seen_by | {"happens-before"},
        )
        return Touch(
            actor=actor,
            epoch=self._order.clocks.epoch(actor),
            access=known,
            turn=(self._submissions, 1) if work is None else (work.number, 0),
            work=self._in_words(work, by_host=by_host),
            base=base,
            low=base + access.start,
            high=base + access.stop,
        )

    def _in_words(self, work: _Work | None, *, by_host: bool) -> str:
        if work is None:
            return f"the host in step {self.step}" if self.step else "the host"
        made = f"{work.what} on stream {work.stream.name}"
        if work.step:
            made = f"step {work.step} ({made})"
        return f"the host code of {made}" if by_host else made
