"""Timelines as SVG, in colours for light and for dark pages.

Times are microseconds of a virtual device.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from colours import ALIKE, LEGEND, SAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from panels import Bar, Clash, Panel

SHOWN = 840.0
"""How many microseconds a picture shows."""
LABELLED = 100.0
"""Microseconds: a shorter piece of a forward does not say its step."""
ENDS = 26.0
"""Microseconds: nearer to the edge there is no room to say what a record is."""
LEFT, WIDTH, LANE, GAP = 118.0, 900.0, 30.0, 12.0
SCALE = (WIDTH - LEFT - 12) / SHOWN
ROW = 18.0
WAITS: Final = "url(#wait)"
LANES: Final = {
    "host": "host",
    "schedule": "schedule stream",
    "plan": "its own stream",
    "forward": "forward stream",
}


def picture(panels: Sequence[Panel], colours: dict[str, str], alt: str) -> str:
    """The panels below one another, and a legend."""
    tops = [0.0]
    for panel in panels:
        tops.append(tops[-1] + 30 + (LANE + GAP) * len(panel.lanes))
    *_, (_, _, last) = _places(panels)
    legend = tops[-1] + 12
    whole = legend + 22 + last
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
    for panel, top in zip(panels, tops, strict=False):
        lines.append(f'<g transform="translate(0 {top:.0f})">')
        lines += _panel(panel, colours)
        lines.append("</g>")
    lines.append(f'<g transform="translate(12 {legend:.0f})">')
    lines += _legend(panels, colours)
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _panel(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    begins, ends = panel.begins, panel.begins + SHOWN
    yield _text(LEFT, 17, panel.title, colours["ink"], size=14, weight=600)
    yield _text(WIDTH - 12, 17, panel.verdict, colours[panel.colour], size=13, anchor="end")
    for lane in panel.lanes:
        name, y = LANES[lane], _y(panel, lane)
        yield _text(LEFT - 12, y + 20, name, colours["soft"], size=12, anchor="end")
        yield f'<path d="M{LEFT} {y + LANE}H{WIDTH - 12}" stroke="{colours["rail"]}"/>'
    for bar in panel.bars:
        if bar.end > begins and bar.start < ends:
            yield from _bar(bar, panel, colours)
    yield from _idle(panel, colours)
    yield from _fences(panel, colours)
    for clash in panel.collisions:
        if begins < clash.start and clash.end < ends:
            yield _collision(clash, panel, colours)


def _bar(bar: Bar, panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    x, right = _x(bar.start, panel.begins), _x(bar.end, panel.begins)
    fill = _fill(bar.what, colours)
    y, inset = _y(panel, bar.lane), 9 if fill == WAITS else 3
    yield (
        f'<rect x="{x:.1f}" y="{y + inset}" width="{right - x:.1f}" height="{LANE - 2 * inset}" '
        f'rx="2" fill="{fill}"/>'
    )
    label = _label(bar)
    if label and right - x > 7 * len(label):
        yield _text((x + right) / 2, y + 19, label, colours["ink"], size=11, anchor="middle")


def _label(bar: Bar) -> str:
    """What a bar says: the step that it belongs to, or what is done in it."""
    if bar.lane == "forward" and bar.what in {"body", "read"} and bar.end - bar.start >= LABELLED:
        return f"step {bar.step}"
    words = SAYS.get(bar.what, "")
    return f"{words} {bar.step}" if words and bar.what in {"prepare", "write"} else words


def _idle(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    begins = panel.begins
    for (_, end), (start, _) in pairwise(panel.forwards):
        if end < start and begins < end and start < begins + SHOWN:
            x, right, y = _x(end, begins), _x(start, begins), _y(panel, "forward")
            yield (
                f'<rect x="{x + 1:.1f}" y="{y + 3.5}" width="{right - x - 2:.1f}" '
                f'height="{LANE - 7}" rx="2" fill="none" stroke="{colours["alarm"]}" '
                'stroke-dasharray="3 3"/>'
            )
            middle = (x + right) / 2
            yield _text(middle, y + 19, "idle", colours["alarm"], size=11, anchor="middle")


def _fences(panel: Panel, colours: dict[str, str]) -> Iterator[str]:
    """From the record on the forward stream to the end of the wait on the schedule stream."""
    begins, ink = panel.begins, colours["ink"]
    top, bottom = _y(panel, "schedule") + 1, _y(panel, "forward") + LANE
    for record, end in panel.fences:
        if begins < record and end < begins + SHOWN:
            yield from _arrow(_x(record, begins), bottom, _x(end, begins), top, ink)
            if panel.ends and ENDS < record - begins < SHOWN - ENDS:
                x, soft = _x(record, begins), colours["soft"]
                yield _text(x, bottom + 14, panel.ends, soft, size=10, anchor="middle")


def _arrow(x: float, y: float, right: float, top: float, ink: str) -> Iterator[str]:
    yield f'<path d="M{x:.1f} {y:.0f}L{right:.1f} {top + 7:.0f}" stroke="{ink}"/>'
    head = f"M{right - 4:.1f} {top + 8:.0f}L{right:.1f} {top:.0f}L{right + 4:.1f} {top + 8:.0f}Z"
    yield f'<path d="{head}" fill="{ink}"/>'
    yield f'<circle cx="{x:.1f}" cy="{y:.0f}" r="3" fill="{ink}"/>'


def _collision(clash: Clash, panel: Panel, colours: dict[str, str]) -> str:
    """From where the one begins too early to where the other ends too late."""
    x, right = _x(clash.start, panel.begins), _x(clash.end, panel.begins)
    top, bottom = sorted(_y(panel, lane) for lane in clash.lanes)
    return (
        f'<rect x="{x:.1f}" y="{top + 1}" width="{right - x:.1f}" '
        f'height="{bottom + LANE - top - 2}" rx="3" fill="none" '
        f'stroke="{colours["alarm"]}" stroke-width="2"/>'
    )


def _legend(panels: Sequence[Panel], colours: dict[str, str]) -> Iterator[str]:
    for what, x, y in _places(panels):
        if what == "fence":
            yield from _arrow(x + 6, y + 10, x + 6, y + 1, colours["ink"])
        else:
            fill = _fill(what, colours)
            yield (f'<rect x="{x:.1f}" y="{y:.0f}" width="12" height="12" rx="2" fill="{fill}"/>')
        yield _text(x + 16, y + 10, LEGEND[what], colours["soft"], size=11)


def _places(panels: Sequence[Panel]) -> Iterator[tuple[str, float, float]]:
    """What the legend explains, and where: in rows as wide as the picture."""
    used = {bar.what for panel in panels for bar in panel.bars} | {"fence"}
    x = y = 0.0
    for what, words in LEGEND.items():
        if what in used:
            width = 34 + 5.7 * len(words)
            if x + width > WIDTH:
                x, y = 0.0, y + ROW
            yield what, x, y
            x += width


def _fill(what: str, colours: dict[str, str]) -> str:
    alike = ALIKE.get(what, what)
    return WAITS if alike == "wait" else colours[alike]


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


def _y(panel: Panel, lane: str) -> float:
    return 26 + panel.lanes.index(lane) * (LANE + GAP)
