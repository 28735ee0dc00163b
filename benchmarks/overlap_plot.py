"""The picture of `overlap.py`: step time against host work, for light and for dark pages.

Lines are the model, points the engine in virtual time. matplotlib is needed for nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from overlap_model import Costs, predicted, simulated

if TYPE_CHECKING:
    from pathlib import Path

DEVICE, WRITES, LONGEST = 10_000.0, 0.05, 1.6
"""Microseconds of a forward; the writes and the longest host work, in units of it."""
LINE, POINTS = 161, 9
PANELS: Final = (
    (False, "The host waits for results only"),
    (True, "The host also waits for the schedule stream"),
)
THEMES: Final = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "rail": "#d1d9e0",
        "page": "#ffffff",
        "normal": "#6e7781",
        "coarse": "#c4161f",
        "fine": "#0969da",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "rail": "#3d444d",
        "page": "#0d1117",
        "normal": "#9198a1",
        "coarse": "#ff7b72",
        "fine": "#58a6ff",
    },
}
CURVES: Final = {
    "normal": ("normal loop", "o"),
    "coarse": ("overlap, coarse fence", "s"),
    "fine": ("overlap, fine fence", "D"),
}

FORMULAS: Final = {
    (False, "normal"): (0.86, 1.72, "D + H"),
    (False, "coarse"): (0.48, 1.1, "max(D + W, H)"),
    (False, "fine"): (0.05, 0.9, "max(D, H)"),
    (True, "normal"): (0.86, 1.77, "D + H + W"),
    (True, "coarse"): (0.5, 1.09, "D + W + H$_{post}$"),
    (True, "fine"): (0.05, 0.9, "max(D, H + W)"),
}
"""(x, y, words): what a curve is called on the picture, where it is simplest."""


def draw(folder: Path) -> None:
    """Write overlap-light.png and overlap-dark.png into `folder`."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise SystemExit("--plot needs matplotlib. Next: pip install matplotlib") from None
    mpl.use("Agg")
    curves = {(sync, mode): _curve(mode, sync=sync) for sync, _ in PANELS for mode in CURVES}
    for theme, colours in THEMES.items():
        _picture(curves, colours).savefig(folder / f"overlap-{theme}.png", dpi=160)


def _costs(ratio: float) -> Costs:
    return Costs.split(DEVICE, ratio * DEVICE, WRITES * DEVICE)


def _curve(mode: str, *, sync: bool) -> dict[str, list[float]]:
    """The model's line and the engine's points, both axes in units of D."""
    line = [LONGEST * number / (LINE - 1) for number in range(LINE)]
    points = [LONGEST * number / (POINTS - 1) for number in range(POINTS)]
    return {
        "x": line,
        "model": [predicted(_costs(ratio), mode, sync=sync) / DEVICE for ratio in line],
        "at": points,
        "engine": [simulated(_costs(ratio), mode, sync=sync) / DEVICE for ratio in points],
    }


def _picture(curves: dict[Any, dict[str, list[float]]], colours: dict[str, str]) -> Any:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings = {"font.family": "sans-serif", "font.size": 10, "text.color": colours["ink"]}
    with rc_context(settings):
        figure = Figure(figsize=(9, 4.1), facecolor=colours["page"], layout="constrained")
        axes = figure.subplots(1, len(PANELS), sharey=True)
        for axis, (sync, title) in zip(axes, PANELS, strict=True):
            for mode, (name, marker) in CURVES.items():
                curve, colour = curves[sync, mode], colours[mode]
                axis.plot(curve["x"], curve["model"], color=colour, linewidth=1.6)
                axis.plot(
                    curve["at"], curve["engine"], marker, color=colour, markersize=5, label=name
                )
                x, y, words = FORMULAS[sync, mode]
                axis.text(x, y, words, color=colour, fontsize=9.5)
            _style(axis, title, colours)
        axes[0].set_ylabel("time per step / D", color=colours["soft"])
        legend = axes[0].legend(frameon=False, loc="upper left", labelcolor=colours["ink"])
        legend.set_title("points: engine, lines: model", {"size": 9})
        legend.get_title().set_color(colours["soft"])
        legend.set_alignment("left")
    return figure


def _style(axis: Any, title: str, colours: dict[str, str]) -> None:
    axis.set_title(title, color=colours["ink"], fontsize=11, loc="left")
    axis.set_xlabel(f"host work per step / D        (W = {WRITES:g} D)", color=colours["soft"])
    axis.set_facecolor(colours["page"])
    axis.set_xlim(-0.04, LONGEST + 0.04)
    axis.set_ylim(0.8, 2.75)
    axis.set_xticks([0, 0.4, 0.8, 1.2, 1.6])
    axis.set_yticks([1, 1.5, 2, 2.5])
    axis.grid(color=colours["rail"], linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(colors=colours["soft"], length=0)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colours["rail"])
