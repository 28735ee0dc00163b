"""A timeline as one HTML page that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from warcore import __version__
from warcore.tracing.summary import summary
from warcore.tracing.timeline import fence_word, title

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warcore.tracing.timeline import Timeline

SCRIPTS: Final = ("data", "stage", "draw", "move", "tell", "hands")
"""Files of `web/`, in the order in which they use each other."""


def page(timeline: Timeline, engine: Mapping[str, Any]) -> Iterator[str]:
    """The page, piece by piece; `engine`: what the engine says of itself."""
    # What was said by a plugin or a model stands in the data only, and the data cannot end its
    # element: no `<` is left in it. The script puts it on the page as text.
    data = json.dumps(_data(timeline, engine), separators=(",", ":"))
    script = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    pieces = {"style": _file("page.css"), "script": script, "data": _inert(data)}
    for i, part in enumerate(_file("page.html").split("%%")):
        yield pieces[part] if i % 2 else part


def _file(name: str) -> str:
    return (files("warcore.tracing") / "web" / name).read_text(encoding="utf-8")


def _inert(text: str) -> str:
    """JSON that no HTML parser finds anything in."""
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class _Words:
    """Each text once; rows name it by its place."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def _data(timeline: Timeline, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of numbers, in the order that data.js names them; times in nanoseconds."""
    words = _Words()
    rows = {
        "slices": _slices(timeline, words),
        "marks": _marks(timeline, words),
        "arrows": _arrows(timeline, words),
        "steps": _steps(timeline, words),
    }
    return {
        "warcore": __version__,
        "engine": dict(engine),
        "summary": summary(timeline),
        "lanes": list(timeline.lanes),
        "end": timeline.end,
        **rows,
        "words": words.all,
    }


def _slices(timeline: Timeline, words: _Words) -> list[list[int]]:
    lanes = {lane: i for i, lane in enumerate(timeline.lanes)}
    steps = {step.number: step for step in timeline.steps}
    return [
        [
            lanes[s.lane],
            words.place(s.kind),
            words.place(title(s, steps[s.step])),
            s.begin,
            s.end - s.begin,
            s.step,
            int(s.inside),
            int(s.failed),
        ]
        for s in timeline.slices
    ]


def _marks(timeline: Timeline, words: _Words) -> list[list[int]]:
    lanes = {lane: i for i, lane in enumerate(timeline.lanes)}
    return [
        [lanes[m.lane], words.place(m.kind), words.place(m.event), m.generation, m.at, m.step]
        for m in timeline.marks
    ]


def _arrows(timeline: Timeline, words: _Words) -> list[list[int]]:
    lanes = {lane: i for i, lane in enumerate(timeline.lanes)}
    return [
        [
            words.place(a.kind),
            words.place(a.event),
            a.generation,
            lanes[a.source],
            a.begin,
            lanes[a.target],
            a.end,
            a.step,
        ]
        for a in timeline.arrows
    ]


def _steps(timeline: Timeline, words: _Words) -> list[list[Any]]:
    return [
        [
            step.number,
            *map(words.place, (step.mode, step.runs_as or "", fence_word(step), step.fence)),
            *map(words.place, (step.detail, step.next, step.error)),
            step.tokens,
            step.begin,
            step.end,
            step.fence_at,
            step.waited,
            list(step.requests),
        ]
        for step in timeline.steps
    ]
