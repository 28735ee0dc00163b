"""Score the contract test kit: `python scripts/score.py [PATTERN] [--own] [--repeats N]`.

Each wrong plugin of `core/tests/wrong_plugins/` must turn exactly its check red; right ones, among
them every plugin of this repository, must pass whatever the repeat. The exit code is 0 if so. The
page `docs/score.md` is what `--write` wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import attrs
from score_page import PAGE, page
from scoring import cleared, held, right_plugins, wrong_plugins

from warcore import __version__
from warcore.testkit.runs.isolation import Isolation

if TYPE_CHECKING:
    from scoring import Cleared, Found

SCHEMA = 1


@attrs.frozen
class Score:
    """What a run came to."""

    wrong: tuple[Found, ...]
    right: tuple[Cleared, ...]
    own: bool
    """Whether the wrong ones were held to their own checks only."""
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether each wrong one was found, exactly, and no right one was."""
        return all(f.is_exact for f in self.wrong) and not any(
            right.alarms or right.unproven for right in self.right
        )

    @property
    def line(self) -> str:
        """The sum of it."""
        exact = sum(found.is_exact for found in self.wrong)
        how = "their check" if self.own else "exactly their check"
        said = f"{exact} of {len(self.wrong)} wrong plugins turn {how} red"
        if self.right:
            alarms = sum(len(right.alarms) for right in self.right)
            runs = sum(right.runs for right in self.right)
            said += f"; {alarms} false alarms in {runs} runs of {len(self.right)} right ones"
        return said

    def document(self) -> dict[str, Any]:
        """All of it as one JSON document."""
        return {
            "schema": SCHEMA,
            "warcore": __version__,
            "own": self.own,
            "whole": self.is_whole,
            "seconds": round(self.seconds, 1),
            "wrong": [_wrong(found) for found in self.wrong],
            "right": [attrs.asdict(right) for right in self.right],
        }


def _wrong(found: Found) -> dict[str, Any]:
    facts = attrs.asdict(found, filter=lambda field, _: field.name != "entry")
    entry = found.entry
    return {
        "name": entry.name,
        "kind": entry.kind,
        "breaks": entry.breaks,
        "detectors": list(entry.detectors),
        "exact": found.is_exact,
        **facts,
    }


def score(pattern: str, *, own: bool, repeats: int) -> Score:
    """Run it, a line for each plugin as it ends."""
    start = time.perf_counter()
    wrong, right = [], []
    with Isolation() as isolation:
        for entry in wrong_plugins(pattern):
            wrong.append(held(entry, isolation, own=own))
            print(_line_of_wrong(wrong[-1]), flush=True)
        for each in [] if own else right_plugins(pattern):
            right.append(cleared(each, isolation, repeats=repeats))
            print(_line_of_right(right[-1]), flush=True)
    return Score(tuple(wrong), tuple(right), own, time.perf_counter() - start)


def _line_of_wrong(found: Found) -> str:
    entry = found.entry
    if found.is_exact:
        said = f"found{' by ' if found.seen_by else ''}{', '.join(found.seen_by)}"
    elif found.red == (entry.breaks,):
        missing = set(entry.detectors) - set(found.seen_by)
        said = f"FOUND, AND NOT BY {', '.join(sorted(missing))}"
    else:
        said = f"RED IS {', '.join(found.red) or 'nothing'}"
    return f"{found.seconds:6.1f} s  {entry.name:<40} {entry.breaks:<40} {said}"


def _line_of_right(right: Cleared) -> str:
    said = f"{right.passed} passed, {len(right.alarms)} false alarms in {right.runs} runs"
    said += f" ({', '.join(sorted(set(right.alarms)))})" if right.alarms else ""
    said += f", could not run: {', '.join(sorted(set(right.unproven)))}" if right.unproven else ""
    return f"{right.seconds:6.1f} s  {right.name:<40} {said}"


def main() -> int:
    """Score, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="only what has it in its name")
    parser.add_argument("--own", action="store_true", help="each wrong one's own check, no more")
    parser.add_argument("--repeats", type=int, default=3, help="of each right plugin")
    parser.add_argument("--json", metavar="FILE", help="write all of it as a JSON document")
    parser.add_argument("--write", action="store_true", help="write docs/score.md")
    given = parser.parse_args()
    if given.write and (given.pattern or given.own):
        parser.error("--write writes the whole score: leave out PATTERN and --own")
    came = score(given.pattern, own=given.own, repeats=given.repeats)
    print(f"{came.line} ({came.seconds:.0f} s)")
    document = came.document()
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - as it was typed
            json.dump(document, file, indent=2)
    if given.write:
        PAGE.write_text(page(document), encoding="utf-8")
    return 0 if came.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
