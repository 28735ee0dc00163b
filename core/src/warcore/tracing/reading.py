"""From what a recorder noted to a timeline: stamps into one time, records to their waits."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from warcore.tracing.timeline import (
    EVENT,
    FENCE,
    HOST,
    INPUTS,
    RESULTS,
    Arrow,
    Mark,
    Slice,
    Step,
    Timeline,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from warcore.device import Stream
    from warcore.tracing.clock import Clock, Stamp
    from warcore.tracing.notes import Point, Sheet, Work

_KINDS: Final = {
    "next_batch": "prepare",
    "_copy": "copy",
    "SharedBuffers._write_pages": "write",
    "ReadFence.wait": "wait",
    "Step.run": "forward",
}
"""Functions that the core submits, and calls of the host that are named otherwise."""


def read(sheets: Sequence[Sheet], clock: Clock, *, device: str, dropped: int) -> Timeline:
    """The timeline of the sheets, which are in the order of their steps."""
    reading = _Reading(sheets, clock)
    slices = reading.slices
    arrows = tuple(_arrows(reading))
    return Timeline(
        device,
        clock.name,
        reading.lanes.names,
        tuple(sorted(slices, key=lambda s: (reading.lanes.place(s.lane), s.begin, -s.end))),
        tuple(mark for mark, _ in reading.marks),
        arrows,
        tuple(_steps(sheets, slices, arrows)),
        dropped,
    )


class _Lanes:
    """Names of streams: the host, then each stream as it comes up; no name twice."""

    def __init__(self) -> None:
        self._names: dict[Stream | None, str] = {None: HOST}

    def of(self, stream: Stream | None) -> str:
        if stream not in self._names:
            assert stream is not None
            alike = sum(name.partition(" #")[0] == stream.name for name in self._names.values())
            self._names[stream] = f"{stream.name} #{alike + 1}" if alike else stream.name
        return self._names[stream]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    def place(self, lane: str) -> int:
        return self.names.index(lane)


class _Reading:
    """All sheets in one time that begins at zero."""

    def __init__(self, sheets: Sequence[Sheet], clock: Clock) -> None:
        self.lanes = _Lanes()
        self.slices: list[Slice] = []
        self.marks: list[tuple[Mark, Slice | None]] = []
        """With the slice of the work that the mark is in, if it is in any."""
        self._clock = clock
        works = [(sheet, work) for sheet in sheets for work in sheet.works]
        begins = [t for _, work in works if (t := clock.read(work.begin)) is not None]
        ends = [t for _, work in works if (t := self._raw(work.end)) is not None]
        self._zero = min(begins, default=0)
        self._last = max([*begins, *ends], default=0) - self._zero
        for sheet, work in works:
            self._read_work(sheet.number, work)
        for sheet in sheets:
            for stream, point in sheet.loose:
                self._read_point(sheet.number, stream, point, None)
        self.marks.sort(key=lambda pair: (self.lanes.place(pair[0].lane), pair[0].at))

    def _raw(self, stamp: Stamp) -> int | None:
        return None if stamp is None else self._clock.read(stamp)

    def _time(self, stamp: Stamp) -> int | None:
        raw = self._raw(stamp)
        return None if raw is None else raw - self._zero

    def _read_work(self, step: int, work: Work) -> None:
        begin, end = self._time(work.begin), self._time(work.end)
        if begin is None:
            return  # it never ran, or nobody knows when
        # What was cut short lasts to the end of the trace.
        end = self._last if end is None else max(begin, end)
        lane = self.lanes.of(work.stream)
        kind = _KINDS.get(work.what, work.what if work.stream is None else "work")
        whole = Slice(lane, kind, work.what, begin, end, step, failed=work.failed)
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
        part = Slice(whole.lane, kind, name, begin, max(begin, end), whole.step, inside=True)
        self.slices.append(part)

    def _read_point(self, step: int, stream: Stream | None, point: Point, of: Slice | None) -> None:
        at = self._time(point.at)
        if at is None:
            return
        if of is not None:
            at = min(max(at, of.begin), of.end)
        lane = self.lanes.of(stream)
        self.marks.append((Mark(lane, point.kind, point.event, point.generation, at, step), of))


# ---- arrows --------------------------------------------------------------------------------------


def _arrows(reading: _Reading) -> Iterator[Arrow]:
    """One for each wait whose record was seen; both ends lie within slices."""
    rows = _Rows(reading.slices)
    first = _passed_by(reading.marks)
    records = {
        (mark.event, mark.generation): (mark, of)
        for mark, of in reading.marks
        if mark.kind == "record"
    }
    for wait, waiting in reading.marks:
        key = wait.event, wait.generation
        if wait.kind != "wait" or key not in records:
            continue
        record, recording = records[key]
        source = recording or rows.before(record.lane, record.at)
        target = waiting or rows.after(wait.lane, wait.at)
        if source is None or target is None:
            continue
        begin = _within(source, min(record.at, first[key]))
        end = _within(target, wait.at)
        kind = _kind(wait.lane, target)
        yield Arrow(kind, *key, record.lane, begin, wait.lane, end, target.step)


def _kind(lane: str, target: Slice) -> str:
    if lane == HOST:
        return RESULTS
    return {"wait": FENCE, "forward": INPUTS}.get(target.kind, EVENT)


def _within(whole: Slice, at: int) -> int:
    """`at`, or the nearest moment at which the slice has begun and has not ended."""
    return max(whole.begin, min(at, whole.end - 1))


def _passed_by(marks: Iterable[tuple[Mark, Slice | None]]) -> dict[tuple[str, int], int]:
    """When each record has been passed at the latest: somebody went on after it.

    A record inside a replay is reported with the replay; who waited for it knows better.
    """
    first: dict[tuple[str, int], int] = {}
    for mark, _ in marks:
        key = mark.event, mark.generation
        first[key] = min(first.get(key, mark.at), mark.at)
    return first


class _Rows:
    """The whole slices of each lane, by begin."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._rows: dict[str, list[Slice]] = {}
        for each in sorted((s for s in slices if not s.inside), key=lambda s: (s.begin, s.end)):
            self._rows.setdefault(each.lane, []).append(each)
        self._begins = {lane: [s.begin for s in row] for lane, row in self._rows.items()}

    def before(self, lane: str, at: int) -> Slice | None:
        """The last that had begun: a record outside of work comes right behind some."""
        place = bisect_right(self._begins.get(lane, ()), at)
        row = self._rows.get(lane, ())
        # One that begins at this very moment comes after the record.
        while place and row[place - 1].begin == at and row[place - 1].end > at:
            place -= 1
        return row[place - 1] if place else None

    def after(self, lane: str, at: int) -> Slice | None:
        """The first that begins then or later: what waits outside of work holds up the next."""
        row = self._rows.get(lane, ())
        return next((s for s in row[self._index(lane, at) :] if s.begin >= at), None)

    def _index(self, lane: str, at: int) -> int:
        return max(0, bisect_right(self._begins.get(lane, ()), at - 1))


# ---- steps ---------------------------------------------------------------------------------------


def _steps(
    sheets: Iterable[Sheet], slices: Iterable[Slice], arrows: Iterable[Arrow]
) -> Iterator[Step]:
    forwards = {s.step: s for s in slices if s.kind == "forward"}
    barriers = {s.step: s for s in slices if s.kind == "wait" and s.lane != HOST}
    fences = {arrow.step: arrow.begin for arrow in arrows if arrow.kind == FENCE}
    phases: dict[int, set[str]] = {}
    for each in slices:
        if each.kind == "phase":
            phases.setdefault(each.step, set()).add(each.name)
    for sheet in sheets:
        forward, barrier = forwards.get(sheet.number), barriers.get(sheet.number)
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
            waited=barrier.end - barrier.begin if barrier else 0,
        )


def _runs_as(phases: set[str]) -> str | None:
    if "replay" in phases:
        return "graph"
    return "eager" if "body" in phases else None
