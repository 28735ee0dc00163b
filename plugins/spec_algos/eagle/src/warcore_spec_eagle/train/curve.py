"""The loss curve as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore_spec_eagle.train.learning import Point

WIDTH: Final = 640
HEIGHT: Final = 300
LEFT: Final = 56
RIGHT: Final = 16
TOP: Final = 40
BOTTOM: Final = 44
TICKS: Final = 5
COLOURS: Final = ("#1f6feb", "#2da44e", "#bf8700", "#cf222e", "#8250df")


def picture(points: Sequence[Point], title: str) -> str:
    """An SVG of two panels: the training loss, and what each level foresees of held-out texts."""
    levels = len(points[0].held_out)
    loss = _panel(points, [[p.loss for p in points]], "training loss", ["loss"], 0)
    shares = [[p.held_out[level] for p in points] for level in range(levels)]
    names = [f"drafted token {level + 1}" for level in range(levels)]
    seen = _panel(points, shares, "held-out tokens foreseen", names, HEIGHT)
    size = f'width="{WIDTH}" height="{2 * HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12"'
    first = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * HEIGHT}"'
    paper = f'<rect {size} fill="#ffffff"/>'
    head = (f"{first} {size} {font}>", f"<title>{title}</title>", paper)
    return "\n".join((*head, *loss, *seen, "</svg>\n"))


def _panel(
    points: Sequence[Point],
    lines: Sequence[Sequence[float]],
    title: str,
    names: Sequence[str],
    down: int,
) -> list[str]:
    """One panel, `down` pixels below the top: lines over the steps, on an axis from 0."""
    last = points[-1].step
    most = max(max(line) for line in lines) * 1.05 or 1.0

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return down + HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most

    drawn = [_text(LEFT, down + 22, title, "start", "#24292f")]
    for tick in range(TICKS + 1):
        value, step = most * tick / TICKS, last * tick / TICKS
        drawn += [
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>',
            _text(LEFT - 6, y(value) + 4, f"{value:.2f}", "end"),
            _text(x(step), down + HEIGHT - BOTTOM + 18, f"{step:.0f}", "middle"),
        ]
    drawn.append(_text((LEFT + WIDTH) / 2, down + HEIGHT - 8, "step", "middle"))
    for at, (line, name) in enumerate(zip(lines, names, strict=True)):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(f"{x(p.step):.1f},{y(v):.1f}" for p, v in zip(points, line, strict=True))
        drawn += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            _text(WIDTH - RIGHT, down + 22 + 15 * at, name, "end", colour),
        ]
    return drawn


def _text(x: float, y: float, text: str, anchor: str, fill: str = "#57606a") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{text}</text>'
