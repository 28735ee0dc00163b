"""A run as a picture shows it: bars, fences and collisions, in microseconds of a virtual device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from colours import LEGEND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.tracing.timeline import Slice, Timeline

FIRST = 3
"""The step that a picture starts with."""


@attrs.frozen
class Bar:
    """Somebody was busy from `start` to `end` with something of a step."""

    lane: str
    what: str
    """A key of LEGEND."""
    step: int
    start: float
    end: float


@attrs.frozen
class Panel:
    """One run: its title, and what the eye should find."""

    title: str
    run: Timeline
    colour: str
    """Of the verdict on the right: soft, good or alarm."""
    reads: str = "out_graph"
    """The phase in which the backend really reads."""

    @property
    def bars(self) -> list[Bar]:
        """Neighbours of one lane, kind and step are one bar."""
        found: list[Bar] = []
        for each in self.run.slices:
            bar = self._bar(each)
            last = found[-1] if found else None
            if bar is None or bar.start == bar.end:
                continue
            if last and attrs.evolve(last, end=bar.end) == attrs.evolve(bar, start=last.start):
                found[-1] = attrs.evolve(last, end=bar.end)
            else:
                found.append(bar)
        return found

    def _bar(self, each: Slice) -> Bar | None:
        kind = {"copy": "write", "phase": "read" if each.name == self.reads else "body"}
        what = kind.get(each.kind, each.kind)
        start = each.begin / 1000
        if what == "collect":
            # What the host did for it, behind what it waited for.
            waits = (s.end for s in self.run.slices if (s.kind, s.inside) == ("wait", True))
            start = max((t / 1000 for t in waits if each.begin <= t <= each.end), default=start)
        drawn = what in LEGEND and not (each.inside and what == "wait")
        return Bar(each.lane, what, each.step, start, each.end / 1000) if drawn else None

    @property
    def forwards(self) -> list[tuple[float, float]]:
        """Start and end of each forward, in order."""
        return [(s.begin / 1000, s.end / 1000) for s in self.run.slices if s.kind == "forward"]

    @property
    def fences(self) -> Iterator[tuple[float, float]]:
        """When each read-done record was passed, and when the write that waited for it went on."""
        for arrow in self.run.arrows:
            if arrow.kind == "fence":
                yield arrow.begin / 1000, arrow.end / 1000

    @property
    def collisions(self) -> Iterator[tuple[float, float]]:
        """When the tables are written while a forward reads them."""
        bars = self.bars
        for write in (bar for bar in bars if bar.what == "write"):
            for read in (bar for bar in bars if bar.what == "read"):
                start, end = max(write.start, read.start), min(write.end, read.end)
                if start < end:
                    yield start, end

    @property
    def begins(self) -> float:
        return self.forwards[FIRST - 1][0] - 30

    @property
    def period(self) -> float:
        starts = [start for start, _ in self.forwards[FIRST:]]
        return (starts[-1] - starts[0]) / (len(starts) - 1)

    @property
    def verdict(self) -> str:
        """What a reader could measure in the picture."""
        if list(self.collisions):
            return "written while it is read"
        return f"a step every {self.period:.0f} µs"
