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
class Clash:
    """What had to end before something else began, and did not."""

    lanes: tuple[str, str]
    start: float
    """Of what comes first."""
    end: float
    """Of what ends last."""


@attrs.frozen
class Panel:
    """One run: its title, and what the eye should find."""

    title: str
    run: Timeline
    colour: str
    """Of the verdict on the right: soft, good or alarm."""
    clash: tuple[str, str, int] = ("read", "write", 1)
    """What must end before something of so many steps later begins; else the two collide."""
    says: str = ""
    """The verdict, where it is no matter of course."""
    ends: str = ""
    """What to call the points at which a fence was recorded."""

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
        what = {"copy": "write", "phase": self._phase(each)}.get(each.kind, each.kind)
        start = each.begin / 1000
        if what == "collect":
            # What the host did for it, behind what it waited for.
            waits = (s.end for s in self.run.slices if (s.kind, s.inside) == ("wait", True))
            start = max((t / 1000 for t in waits if each.begin <= t <= each.end), default=start)
        drawn = what in LEGEND and not (each.inside and what == "wait")
        return Bar(each.lane, what, each.step, start, each.end / 1000) if drawn else None

    def _phase(self, each: Slice) -> str:
        """A phase is what its name says, or the rest of a forward."""
        return "body" if each.name not in LEGEND and each.lane == "forward" else each.name

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
    def lanes(self) -> list[str]:
        """Whoever did anything, from top to bottom."""
        order = ["host", "schedule", "plan", "forward"]
        return [lane for lane in order if lane in self.run.lanes]

    @property
    def collisions(self) -> Iterator[Clash]:
        """For each thing that began too early, how long it should have waited."""
        before, after, steps = self.clash
        bars = self.bars
        for early in (bar for bar in bars if bar.what == after):
            late = [
                bar
                for bar in bars
                if bar.what == before and early.step == bar.step + steps and early.start < bar.end
            ]
            if late:
                both = [early, *late]
                start, end = min(bar.start for bar in both), max(bar.end for bar in both)
                yield Clash((early.lane, late[0].lane), start, end)

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
        if self.says or list(self.collisions):
            return self.says or "written while it is read"
        return f"a step every {self.period:.0f} µs"
