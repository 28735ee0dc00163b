"""Arrows: from each record to the waits for it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from warcore.tracing.timeline import EVENT, FENCE, HOST, INPUTS, RESULTS, Arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from warcore.tracing.timeline import Mark, Slice


def arrows(slices: Iterable[Slice], marks: Iterable[tuple[Mark, Slice | None]]) -> Iterator[Arrow]:
    """One for each wait whose record was seen; both ends lie within slices.

    marks: with the slice of the work that each is in, if it is in any.
    """
    marks = list(marks)
    rows = _Rows(slices)
    first = _passed_by(marks)
    records = {
        (mark.event, mark.generation): (mark, of) for mark, of in marks if mark.kind == "record"
    }
    for wait, waiting in marks:
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
