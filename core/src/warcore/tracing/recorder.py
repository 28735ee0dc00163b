"""The recorder: the observer of one device, and of the scheduler's methods that the loop calls."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

from warcore.device import Observer
from warcore.errors import ConfigError
from warcore.fence import NEXT_STEP, FenceReason
from warcore.tracing.clock import clock_of
from warcore.tracing.notes import Point, Sheet, Verdict, Work
from warcore.tracing.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from warcore.device import Device, Event, Pending, Stream, Ticket
    from warcore.launch import Entry, Launch
    from warcore.scheduler import Scheduler
    from warcore.tracing.timeline import Timeline

MAX_STEPS = 2000
"""How many steps are kept unless somebody says otherwise: the last ones."""


class Recorder(Observer):
    """Watches a device and its scheduler until it is closed. A context manager.

    Keeps the last `max_steps` steps and forgets those before: memory is bounded, whatever runs.
    Reports come from every thread of the device; each adds to lists that one thread at a time
    appends to.

    DeviceError if somebody watches the device already.
    """

    def __init__(self, device: Device, scheduler: Scheduler, *, max_steps: int = MAX_STEPS) -> None:
        if max_steps < 1:
            raise ConfigError(f"max_steps={max_steps} keeps no step", next="max_steps takes N >= 1")
        self._device = device
        self._scheduler: Any = scheduler
        self._clock = clock_of(device)
        self._sheets: deque[Sheet] = deque(maxlen=max_steps)
        self._seen = 0
        self._submitted: dict[int, Work] = {}
        """By id of the pending, which lives until its work has finished."""
        self._running: dict[Stream | None, Work] = {}
        self._events: dict[Event, str] = {}
        self._numbers = count(1)
        self._preparing: Work | None = None
        self._before: dict[str, Any] = {}
        """What the scheduler itself had under the names that are wrapped; None: its class has."""
        self._watching = ExitStack()
        self._watching.enter_context(device.watched_by(self))
        for name, wrap in (
            ("next_batch", self._next_batch),
            ("launch", self._launch),
            ("barrier", self._of_launch),
            ("collect", self._of_launch),
        ):
            self._before[name] = vars(scheduler).get(name)
            setattr(scheduler, name, wrap(name, getattr(scheduler, name)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(wait=kind is None)

    def close(self, *, wait: bool = True) -> None:
        """Stop watching. What was noted stays. Idempotent.

        wait: first let the streams finish what was submitted.
        """
        if self._device.observer is self:
            if wait:
                self._clock.settle()
            self._watching.close()
            for name, before in self._before.items():
                if before is None:
                    delattr(self._scheduler, name)
                else:
                    setattr(self._scheduler, name, before)

    def timeline(self) -> Timeline:
        """What was seen so far, in one time."""
        if self._device.observer is self:
            self._clock.settle()
        for sheet in self._sheets:
            if sheet.launch is not None:
                sheet.verdict = _verdict(sheet.launch)
        return read(
            list(self._sheets),
            self._clock,
            self._device,
            dropped=self._seen - len(self._sheets),
        )

    # ---- the device reports ----------------------------------------------------------------------

    def submitted(self, stream: Stream, pending: Pending) -> None:
        """Work joins the step that the host is busy with; before the first there is none."""
        if self._sheets:
            # A pending names its function first, and forgets it once it has run.
            what = repr(pending).partition(" on stream ")[0]
            work = Work(stream, what, self._clock.stamp(None))
            self._submitted[id(pending)] = work
            self._sheets[-1].works.append(work)

    def started(self, stream: Stream, pending: Pending) -> None:
        """The work begins."""
        work = self._submitted.get(id(pending))
        if work is not None:
            self._running[stream] = work
            work.begin = self._clock.stamp(stream)

    def finished(self, stream: Stream, pending: Pending) -> None:
        """The work has returned or raised."""
        work = self._submitted.pop(id(pending), None)
        if work is not None:
            work.end = self._clock.stamp(stream)
            work.failed = pending.error is not None
            self._running.pop(stream, None)

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        """`stream` passes the record."""
        self._point("record", stream, ticket)

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        """`stream` (None: the host) goes on after the record."""
        self._point("wait", stream, ticket)

    def phase(self, stream: Stream | None, name: str) -> None:
        """The running work goes on to its next phase."""
        work = self._running.get(stream)
        if work is not None:
            work.phases.append((name, self._clock.stamp(stream)))

    def _point(self, kind: Any, stream: Stream | None, ticket: Ticket) -> None:
        if not self._sheets:
            return
        at = self._clock.stamp(stream)
        name = self._events.get(ticket.event)
        if name is None:
            name = self._events.setdefault(ticket.event, f"event {next(self._numbers)}")
        point = Point(kind, name, ticket.generation, at)
        work = self._running.get(stream)
        if work is not None:
            work.points.append(point)
        else:
            self._sheets[-1].loose.append((stream, point))

    # ---- the loop calls --------------------------------------------------------------------------

    def _call(self, what: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The value of the method; the call itself is the host's work."""
        now = self._clock.stamp(None)
        work = self._running[None] = Work(None, what, now, now)
        try:
            return method(*args, **named)
        except BaseException:
            work.failed = True
            raise
        finally:
            work.end = self._clock.stamp(None)
            del self._running[None]
            if what == "next_batch":
                self._preparing = work
            elif self._sheets:
                self._sheet_of(args[0]).works.append(work)

    def _next_batch(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def next_batch() -> Any:
            batch = self._call(what, method)
            if not batch and self._preparing is not None and self._sheets:
                self._sheets[-1].works.append(self._preparing)
            return batch

        return next_batch

    def _launch(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def launch(entries: list[Entry], **named: Any) -> Launch:
            sheet = self._new_sheet(entries)
            made: Launch = self._call(what, method, entries, **named)
            sheet.launch, sheet.mode = made, made.mode.value
            return made

        return launch

    def _of_launch(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def of_launch(launch: Launch) -> None:
            sheet = self._sheet_of(launch)
            try:
                self._call(what, method, launch)
            finally:
                if what == "collect" and sheet.launch is launch:
                    sheet.verdict, sheet.launch = _verdict(launch), None

        return of_launch

    def _new_sheet(self, entries: list[Entry]) -> Sheet:
        self._seen += 1
        requests = tuple(entry.request.id for entry in entries)
        sheet = Sheet(self._seen, "", requests, sum(entry.tokens for entry in entries))
        if self._preparing is not None:
            sheet.works.append(self._preparing)
            self._preparing = None
        self._sheets.append(sheet)
        return sheet

    def _sheet_of(self, launch: Any) -> Sheet:
        """The sheet of a launch that is not collected; the newest for entries on their way."""
        found = (s for s in reversed(self._sheets) if s.launch is launch)
        return next(found, self._sheets[-1])


def _verdict(launch: Launch) -> Verdict:
    error = "" if launch.error is None else repr(launch.error)
    if launch.fence is None:
        return Verdict("none", error=error)
    reason = launch.fence.reason
    remedy = "" if reason is FenceReason.FINE else NEXT_STEP.get(reason, "")
    return Verdict(reason.value, launch.fence.detail, remedy, error)
