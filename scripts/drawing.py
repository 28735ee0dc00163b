"""Timelines as SVG, in colours for light and for dark pages.

Times are microseconds of a virtual device.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warcore.tracing.timeline import Slice, Timeline

FIRST, SHOWN = 3, 840.0
"""The step that a picture starts with, and how many microseconds it shows."""
LABELLED = 100.0
"""Microseconds: a shorter piece of a forward does not say its step."""
LEFT, WIDTH, LANE, GAP = 118.0, 900.0, 30.0, 12.0
SCALE = (WIDTH - LEFT - 12) / SHOWN
LANES: Final = {"host": "host", "schedule": "schedule stream", "forward": "forward stream"}

THEMES: Final = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "rail": "#d1d9e0",
        "prepare": "#dfe3e8",
        "collect": "#b6bec9",
        "write": "#f5c26b",
        "wait": "#8c959f",
        "read": "#e5737b",
        "body": "#9cc3f0",
        "alarm": "#c4161f",
        "good": "#1a7f37",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "rail": "#3d444d",
        "prepare": "#3d444d",
        "collect": "#656c76",
        "write": "#9a6a12",
        "wait": "#7d8590",
        "read": "#b5424c",
        "body": "#2b5c94",
        "alarm": "#ff7b72",
        "good": "#56d364",
    },
}
LEGEND: Final = {
    "prepare": "prepares a step",
    "collect": "takes results",
    "write": "writes the shared tables",
    "wait": "waits",
    "read": "reads the shared tables",
    "body": "rest of the forward",
    "fence": "the fence",
}


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


def picture(panels: Sequence[Panel], colours: dict[str, str], alt: str) -> str:
    """The panels below one another, and a legend."""
    height = 156.0
    whole = height * len(panels) + 34
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {whole:.0f}" '
            f'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img">'
        ),
        f"<title>{alt}</title>",
        "<defs>",
        (
            '<pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><path d="M0 0V6" stroke="{colours["wait"]}" '
            'stroke-width="2.4"/></pattern>'
        ),
        "</defs>",
    ]
    for index, panel in enumerate(panels):
        lines.append(f'<g transform="translate(0 {index * height:.0f})">')
        lines += _panel(panel, colours)
        lines.append("</g>")
    lines.append(f'<g transform="translate(12 {whole - 22:.0f})">')
    lines += _legend(panels, colours)
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _panel(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    begins, ends = panel.begins, panel.begins + SHOWN
    yield _text(LEFT, 17, panel.title, colours["ink"], size=14, weight=600)
    yield _text(WIDTH - 12, 17, panel.verdict, colours[panel.colour], size=13, anchor="end")
    for lane, name in LANES.items():
        y = _y(lane)
        yield _text(LEFT - 12, y + 20, name, colours["soft"], size=12, anchor="end")
        yield f'<path d="M{LEFT} {y + LANE}H{WIDTH - 12}" stroke="{colours["rail"]}"/>'
    for bar in panel.bars:
        if bar.end > begins and bar.start < ends:
            yield from _bar(bar, begins, colours)
    yield from _idle(panel, colours)
    yield from _fences(panel, colours)
    for start, end in panel.collisions:
        if begins < start and end < ends:
            yield _collision(start, end, begins, colours)


def _bar(bar: Bar, begins: float, colours: dict[str, str]) -> Iterator[str]:
    x, right = _x(bar.start, begins), _x(bar.end, begins)
    fill = "url(#wait)" if bar.what == "wait" else colours[bar.what]
    y, inset = _y(bar.lane), 9 if bar.what == "wait" else 3
    yield (
        f'<rect x="{x:.1f}" y="{y + inset}" width="{right - x:.1f}" height="{LANE - 2 * inset}" '
        f'rx="2" fill="{fill}"/>'
    )
    label = _label(bar)
    if label and right - x > 7 * len(label):
        yield _text((x + right) / 2, y + 19, label, colours["ink"], size=11, anchor="middle")


def _label(bar: Bar) -> str:
    """What a bar says: the step that it belongs to."""
    if bar.lane == "forward" and bar.end - bar.start < LABELLED:
        return "reads" if bar.what == "read" else ""
    words = {"prepare": "prep.", "write": "write", "body": "step", "read": "step"}
    return f"{words[bar.what]} {bar.step}" if bar.what in words else ""


def _idle(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    begins = panel.begins
    for (_, end), (start, _) in pairwise(panel.forwards):
        if end < start and begins < end and start < begins + SHOWN:
            x, right, y = _x(end, begins), _x(start, begins), _y("forward")
            yield (
                f'<rect x="{x + 1:.1f}" y="{y + 3.5}" width="{right - x - 2:.1f}" '
                f'height="{LANE - 7}" rx="2" fill="none" stroke="{colours["alarm"]}" '
                'stroke-dasharray="3 3"/>'
            )
            middle = (x + right) / 2
            yield _text(middle, y + 19, "idle", colours["alarm"], size=11, anchor="middle")


def _fences(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    """From the record on the forward stream to the end of the wait on the schedule stream."""
    begins = panel.begins
    for _, end in panel.fences:
        if begins < end < begins + SHOWN:
            x = _x(end, begins)
            yield from _arrow(x, _y("schedule") + 1, _y("forward") + LANE, colours["ink"])


def _arrow(x: float, top: float, bottom: float, ink: str) -> Iterator[str]:
    yield f'<path d="M{x:.1f} {bottom}V{top + 7}" stroke="{ink}"/>'
    yield f'<path d="M{x - 4:.1f} {top + 8}L{x:.1f} {top}L{x + 4:.1f} {top + 8}Z" fill="{ink}"/>'
    yield f'<circle cx="{x:.1f}" cy="{bottom}" r="3" fill="{ink}"/>'


def _collision(start: float, end: float, begins: float, colours: dict[str, str]) -> str:
    x, right = _x(start, begins), _x(end, begins)
    top = _y("schedule") + 1
    return (
        f'<rect x="{x:.1f}" y="{top}" width="{right - x:.1f}" height="{2 * LANE + GAP - 2}" rx="3" '
        f'fill="none" stroke="{colours["alarm"]}" stroke-width="2"/>'
    )


def _legend(panels: Sequence[Panel], colours: dict[str, str]) -> Iterator[str]:
    used = {bar.what for panel in panels for bar in panel.bars} | {"fence"}
    x = 0.0
    for what, words in LEGEND.items():
        if what not in used:
            continue
        if what == "fence":
            yield from _arrow(x + 6, 1, 10, colours["ink"])
        else:
            fill = "url(#wait)" if what == "wait" else colours[what]
            yield f'<rect x="{x:.1f}" y="0" width="12" height="12" rx="2" fill="{fill}"/>'
        yield _text(x + 16, 10, words, colours["soft"], size=11)
        x += 34 + 5.7 * len(words)


def _text(
    x: float,
    y: float,
    words: str,
    colour: str,
    *,
    size: int,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" '
        f'font-weight="{weight}" text-anchor="{anchor}">{words}</text>'
    )


def _x(time: float, begins: float) -> float:
    return LEFT + min(max(time - begins, 0.0), SHOWN) * SCALE


def _y(lane: str) -> float:
    return 26 + list(LANES).index(lane) * (LANE + GAP)
