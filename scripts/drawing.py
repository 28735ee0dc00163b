"""Timelines as SVG, in colours for light and for dark pages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import attrs
from timeline import METADATA, Span, collisions, forwards, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIRST, SHOWN = 3, 840.0
"""The step that a picture starts with, and how many microseconds it shows."""
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
class Panel:
    """One run: its title, and what the eye should find."""

    title: str
    spans: tuple[Span, ...]
    colour: str
    """Of the verdict on the right: soft, good or alarm."""

    @property
    def begins(self) -> float:
        return forwards(self.spans)[FIRST - 1][0] - 30

    @property
    def period(self) -> float:
        starts = [start for start, _ in forwards(self.spans)[FIRST:]]
        return (starts[-1] - starts[0]) / (len(starts) - 1)

    @property
    def verdict(self) -> str:
        """What a reader could measure in the picture."""
        if list(collisions(self.spans)):
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
    for span in merged(panel.spans):
        if span.end > begins and span.start < ends:
            yield from _bar(span, begins, colours, _label(span, panel.spans))
    yield from _idle(panel, colours)
    yield from _fences(panel, colours)
    for start, end in collisions(panel.spans):
        if begins < start and end < ends:
            yield _collision(start, end, begins, colours)


def _bar(span: Span, begins: float, colours: dict[str, str], label: str) -> Iterator[str]:
    x, right = _x(span.start, begins), _x(span.end, begins)
    fill = "url(#wait)" if span.what == "wait" else colours[span.what]
    y, inset = _y(span.lane), 9 if span.what == "wait" else 3
    yield (
        f'<rect x="{x:.1f}" y="{y + inset}" width="{right - x:.1f}" height="{LANE - 2 * inset}" '
        f'rx="2" fill="{fill}"/>'
    )
    if label and right - x > 7 * len(label):
        yield _text((x + right) / 2, y + 19, label, colours["ink"], size=11, anchor="middle")


def _label(span: Span, spans: Sequence[Span]) -> str:
    """What a bar says: the step that it belongs to."""
    whole = merged(spans)
    alike = [s.start for s in whole if (s.lane, s.what) == (span.lane, span.what)]
    number = alike.index(span.start) + 1
    if span.what == "body" and span.end - span.start <= METADATA:
        return ""
    return {
        "prepare": f"prep. {number}",
        "write": f"write {number}",
        "body": f"step {number}",
        "read": "reads" if span.end - span.start <= METADATA else f"step {number}",
    }.get(span.what, "")


def _idle(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    begins = panel.begins
    for (_, end), (start, _) in pairwise(forwards(panel.spans)):
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
    for span in panel.spans:
        if span.what == "wait" and begins < span.end < begins + SHOWN:
            x = _x(span.end, begins)
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
    used = {span.what for panel in panels for span in panel.spans} | {"fence"}
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
