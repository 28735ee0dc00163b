"""The page of the score: from the document that `scripts/score.py --json` writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from reference_checks import anchor

from warcore.testkit.detectors.used import Name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/score.md"
PLUGINS = ROOT / "core/tests/wrong_plugins"
_ABOUT: Final = """\
Who checks the checks? Plugins that are wrong on purpose, each in one way. Each must turn exactly
its check red; the right ones must pass, whatever the repeat. This page is what this command wrote,
on the host device; it takes hours, and goes on from its record when it was stopped:"""
_HELD: Final = """\
CI holds less, and each time: `make test` runs each wrong plugin's own check. That it turns no other
one red, and that the right ones pass 20 times, is what `make test-all` holds."""
_ABOUT_WRONG: Final = """\
A plugin is held to the checks of its kind; one whose package is wrong, to those of every plugin.
*Seen by* is what the failure names: detectors of the kit, or in what other way it was found. It is
empty where the failure names neither: the check has looked at an answer or at values itself."""
_HELD_ELSEWHERE: Final = """\
Not in this score: `backend.no_late_address` and `backend.marker_position` are held on CUDA only,
and have no wrong plugin here. Their tests play the GPU
([test_rules_cuda.py](../core/tests/testkit/test_rules_cuda.py)), or need one and are marked `gpu`.
What a backend can do against `backend.event_position` is to record an event of its own, and so do
its wrong plugins. An event of the core that comes too early or too late is planted in the core
itself ([test_wrong_cores.py](../core/tests/testkit/test_wrong_cores.py))."""
_ABOUT_WAYS: Final = """\
What failures name that is no detector of the kit: an interpreter or an environment of its own, a
text that was read, two results beside each other, a call that was met on its way."""
_ABOUT_RIGHT: Final = """\
In each repeat the checks of its kind; those of every plugin, which chance cannot change, once. A
check that does not apply, as none of a model does to a family that needs a file, is not counted."""


def page(score: Mapping[str, Any]) -> str:
    """docs/score.md."""
    return "\n".join(_lines(score)).rstrip() + "\n"


def _lines(score: Mapping[str, Any]) -> Iterator[str]:
    wrong, right = score["wrong"], score["right"]
    repeats = max((each["runs"] for each in right), default=1)
    yield "<!-- Written by scripts/score.py --write. -->"
    yield "# The score of the kit\n"
    yield f"{_ABOUT}\n"
    yield f"```bash\nmake score ARGS='--repeats {repeats} --record score.jsonl'\n```\n"
    yield f"Commits that its results are of: {', '.join(score['trees'])}.\n"
    exact = sum(each["exact"] for each in wrong)
    alarms = sum(len(each["alarms"]) for each in right)
    runs = sum(each["runs"] for each in right)
    yield f"**{exact} of {len(wrong)} wrong plugins turn exactly their check red; {alarms} false"
    yield f"alarms in {runs} runs of {len(right)} right ones.**\n"
    yield f"{_HELD}\n"
    yield from _wrong(wrong)
    yield from _detectors(wrong)
    yield from _right(right)


def _wrong(wrong: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Wrong plugins\n"
    yield f"{_ABOUT_WRONG}\n"
    yield f"{_HELD_ELSEWHERE}\n"
    yield "| wrong plugin | must turn red | red is | seen by |\n|---|---|---|---|"
    for each in wrong:
        red = ", ".join(map(_check, each["red"])) or "nothing"
        seen = ", ".join(each["seen_by"])
        yield f"| {_plugin(each['name'])} | {_check(each['breaks'])} | {red} | {seen} |"
    yield ""


def _detectors(wrong: list[Mapping[str, Any]]) -> Iterator[str]:
    """How often each was named: the detectors of the kit, then what else failures name."""
    seen = Counter(name for each in wrong if each["exact"] for name in each["seen_by"])
    for heading, words, column, wanted in (
        ("Detectors", "", "detector", True),
        ("Other ways", _ABOUT_WAYS, "way", False),
    ):
        yield f"## {heading}\n"
        if words:
            yield f"{words}\n"
        yield f"| {column} | wrong plugins that it saw |\n|---|---|"
        for name, count in seen.most_common():
            if is_detector(name) is wanted:
                yield f"| {name} | {count} |"
        yield ""


def is_detector(name: str) -> bool:
    """Whether the kit has a detector that failures call so: `poison` is the in-order poison."""
    return any(f" {full}".endswith(f" {name}") for full in get_args(Name))


def _right(right: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Right plugins\n"
    yield f"{_ABOUT_RIGHT}\n"
    yield "| right plugin | checks passed | runs | false alarms | could not run |"
    yield "|---|---|---|---|---|"
    for each in right:
        name = each["name"] if ":" in each["name"] else _plugin(each["name"])
        alarms, unproven = len(each["alarms"]), len(each["unproven"])
        yield f"| {name} | {each['passed']} | {each['runs']} | {alarms} | {unproven} |"
    yield ""


def _plugin(name: str) -> str:
    file = name if (PLUGINS / name).is_dir() else f"{name}.py"
    return f"[{name}](../core/tests/wrong_plugins/{file})"


def _check(name: str) -> str:
    return f"[`{name}`](reference/checks.md#{anchor(name)})"
