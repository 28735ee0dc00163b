"""Timelines as SVG, in colours for light and for dark pages.

Times are microseconds of a virtual device.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from colours import LEGEND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from panels import Bar, Panel

SHOWN = 840.0
"""How many microseconds a picture shows."""
LABELLED = 100.0
"""Microseconds: a shorter piece of a forward does not say its step."""
LEFT, WIDTH, LANE, GAP = 118.0, 900.0, 30.0, 12.0
SCALE = (WIDTH - LEFT - 12) / SHOWN
LANES: Final = {"host": "host", "schedule": "schedule stream", "forward": "forward stream"}


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
