"""From what a recorder noted to a timeline: works into slices, sheets into steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore.tracing.arrows import arrows
from warcore.tracing.timeline import FENCE, HOST, Mark, Slice, Step, Timeline

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from warcore.device import Device, Stream
    from warcore.tracing.clock import Clock, Stamp
    from warcore.tracing.notes import Point, Sheet, Work
    from warcore.tracing.timeline import Arrow

_KINDS: Final = {
    "next_batch": "prepare",
    "_copy": "copy",
    "SharedBuffers._write_map": "write",
    "SharedBuffers._write_pages": "write",
    "ReadFence.wait": "wait",
    "Step.run": "forward",
}
"""Functions that the core submits, and calls of the host that are named otherwise."""


def read(sheets: Sequence[Sheet], clock: Clock, device: Device, *, dropped: int) -> Timeline:
    """The timeline of the sheets, which are in the order of their steps."""
    reading = _Reading(sheets, clock, device.streams)
    slices = reading.slices
    drawn = tuple(arrows(slices, reading.marks))
    return Timeline(
        device.name,
        clock.name,
        reading.lanes.names,
        tuple(sorted(slices, key=lambda s: (reading.lanes.place(s.lane), s.begin, -s.end))),
        tuple(mark for mark, _ in reading.marks),
        drawn,
        tuple(_steps(sheets, slices, drawn)),
        dropped,
    )


class _Lanes:
    """Names of those who did anything: the host, then the streams of a device; no name twice."""

    def __init__(self, streams: Iterable[Stream], busy: Container[Stream | None]) -> None:
        self._names: dict[Stream | None, str] = {None: HOST}
        for stream in streams:
            if stream in busy:
                alike = sum(name.partition(" #")[0] == stream.name for name in self.names)
                self._names[stream] = f"{stream.name} #{alike + 1}" if alike else stream.name

    def of(self, stream: Stream | None) -> str:
        return self._names[stream]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    def place(self, lane: str) -> int:
        return self.names.index(lane)


class _Reading:
    """All sheets in one time that begins at zero."""

    def __init__(self, sheets: Sequence[Sheet], clock: Clock, streams: Iterable[Stream]) -> None:
        self.lanes = _Lanes(streams, _busy(sheets))
        self.slices: list[Slice] = []
        """In the order of steps; those of one stream as they were submitted."""
        self.marks: list[tuple[Mark, Slice | None]] = []
        """With the slice of the work that the mark is in, if it is in any."""
        self._clock = clock
        works = [(sheet, work) for sheet in sheets for work in sheet.works]
        begins = [t for _, work in works if (t := clock.read(work.begin)) is not None]
        ends = [t for _, work in works if (t := clock.read(work.end)) is not None]
        self._zero = min(begins, default=0)
        self._last = max([*begins, *ends], default=0) - self._zero
        for sheet, work in works:
            self._read_work(sheet.number, work)
        for sheet in sheets:
            for stream, point in sheet.loose:
                self._read_point(sheet.number, stream, point, None)
        self.marks.sort(key=lambda pair: (self.lanes.place(pair[0].lane), pair[0].at))

    def _time(self, stamp: Stamp) -> int | None:
        raw = self._clock.read(stamp)
        return None if raw is None else raw - self._zero

    def _read_work(self, step: int, work: Work) -> None:
        begin, end, submitted = map(self._time, (work.begin, work.end, work.submitted))
        if begin is None or submitted is None:
            return  # it never ran, or nobody knows when
        # What was cut short lasts to the end of the trace.
        end = self._last if end is None else max(begin, end)
        lane = self.lanes.of(work.stream)
        kind = _KINDS.get(work.what, work.what if work.stream is None else "work")
        whole = Slice(lane, kind, work.what, begin, end, step, submitted, failed=work.failed)
        self.slices.append(whole)
        phases = [(name, t) for name, at in work.phases if (t := self._time(at)) is not None]
        for i, (name, at) in enumerate(phases):
            until = phases[i + 1][1] if i + 1 < len(phases) else end
            self._add_part(whole, "phase", name, at, until)
        for point in work.points:
            self._read_point(step, work.stream, point, whole)
        if work.what == "collect" and not phases:
            waits = [t for p in work.points if p.kind == "wait" and (t := self._time(p.at))]
            if waits:
                self._add_part(whole, "wait", "wait for results", begin, max(waits))

    def _add_part(self, whole: Slice, kind: str, name: str, begin: int, end: int) -> None:
        begin, end = (min(max(t, whole.begin), whole.end) for t in (begin, end))
        end = max(begin, end)
        part = Slice(whole.lane, kind, name, begin, end, whole.step, whole.submitted, inside=True)
        self.slices.append(part)

    def _read_point(self, step: int, stream: Stream | None, point: Point, of: Slice | None) -> None:
        at = self._time(point.at)
        if at is None:
            return
        if of is not None:
            at = min(max(at, of.begin), of.end)
        lane = self.lanes.of(stream)
        self.marks.append((Mark(lane, point.kind, point.event, point.generation, at, step), of))


def _busy(sheets: Iterable[Sheet]) -> set[Stream | None]:
    works = {work.stream for sheet in sheets for work in sheet.works}
    return works | {stream for sheet in sheets for stream, _ in sheet.loose}


def _steps(
    sheets: Iterable[Sheet], slices: Iterable[Slice], drawn: Iterable[Arrow]
) -> Iterator[Step]:
    forwards = {s.step: s for s in slices if s.kind == "forward"}
    waits = _waits(slices)
    fences = {arrow.step: arrow.begin for arrow in drawn if arrow.kind == FENCE}
    phases: dict[int, set[str]] = {}
    for each in slices:
        if each.kind == "phase":
            phases.setdefault(each.step, set()).add(each.name)
    for sheet in sheets:
        forward = forwards.get(sheet.number)
        verdict = sheet.verdict
        yield Step(
            number=sheet.number,
            mode=sheet.mode,
            runs_as=_runs_as(phases.get(sheet.number, set())),
            requests=sheet.requests,
            tokens=sheet.tokens,
            fence=verdict.reason,
            detail=verdict.detail,
            next=verdict.next,
            error=verdict.error,
            begin=forward.begin if forward else None,
            end=forward.end if forward else None,
            fence_at=fences.get(sheet.number),
            waited=waits.get(sheet.number, 0),
        )


def _waits(slices: Iterable[Slice]) -> dict[int, int]:
    """For each step how long the first write behind its barrier waited for the fence.

    A barrier that nobody stands behind holds nothing up, however long it lasts.
    """
    waits: dict[int, int] = {}
    barriers: dict[str, Slice] = {}
    for each in slices:
        if each.kind == "wait" and each.lane != HOST:
            barriers[each.lane] = each
        elif each.kind in {"copy", "write"} and each.lane in barriers:
            barrier = barriers.pop(each.lane)
            came = max(barrier.begin, each.submitted)
            waits[barrier.step] = max(0, barrier.end - came)
    return waits


def _runs_as(phases: set[str]) -> str | None:
    if "replay" in phases:
        return "graph"
    return "eager" if "body" in phases else None
