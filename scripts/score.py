"""Score the contract test kit: `python scripts/score.py [PATTERN] [--own] [--repeats N]`.

Each wrong plugin of `core/tests/wrong_plugins/` must turn exactly its check red; right ones, among
them every plugin of this repository, must pass whatever the repeat. The exit code is 0 if so. The
page `docs/score.md` is what `--write` wrote. All of it takes hours: with `--record FILE` each
result is kept as it comes, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from score_page import PAGE, page
from score_record import Record, Task, tree
from scoring import Cleared, Found, cleared, held, right_plugins, wrong_plugins

from warcore import __version__
from warcore.testkit.runs.isolation import Isolation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA = 2


@attrs.frozen
class Score:
    """What a run came to."""

    wrong: tuple[Found, ...]
    right: tuple[Cleared, ...]
    own: bool
    """Whether the wrong ones were held to their own checks only."""
    trees: tuple[str, ...]
    """The states of the tree that were scored."""
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
            "trees": list(self.trees),
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


def score(pattern: str, *, own: bool, repeats: int, workers: int, record: Record) -> Score:
    """Run what the record lacks, a line for each plugin as it ends."""
    start, state = time.perf_counter(), tree()
    wrong, right = wrong_plugins(pattern), [] if own else right_plugins(pattern)
    tasks = [Task(entry.name, None) for entry in wrong]
    tasks += [Task(each.name, repeat) for repeat in range(repeats) for each in right]
    missing = [task for task in tasks if task not in record]
    for task, came in _results(missing, own=own, workers=workers):
        record.add(task, state, came)
        print(_line_of_wrong(came) if isinstance(came, Found) else _line_of_right(came), flush=True)
    return Score(
        tuple(record.found(entry) for entry in wrong),
        tuple(record.cleared(each.name) for each in right),
        own,
        tuple(record.trees),
        time.perf_counter() - start,
    )


# ---- each task in one of the workers -------------------------------------------------------------

_own: bool
_isolation: Isolation


def _results(
    tasks: Sequence[Task], *, own: bool, workers: int
) -> Iterator[tuple[Task, Found | Cleared]]:
    """As they come. The workers end with the loop over them."""
    # Spawned: what a plugin leaves behind in a process is no concern of another's.
    with get_context("spawn").Pool(workers, _begin, (own,)) as pool:
        yield from pool.imap_unordered(_result, tasks)


def _begin(own: bool) -> None:
    global _own, _isolation
    # Ctrl-C is for the parent, which ends us. A handler is not handed on to the checks.
    signal.signal(signal.SIGINT, lambda *_: None)
    _own, _isolation = own, Isolation()


def _result(task: Task) -> tuple[Task, Found | Cleared]:
    plugin = _plugins()[task.plugin]
    if task.repeat is None:
        return task, held(plugin, _isolation, own=_own)
    return task, cleared(plugin, _isolation, first=not task.repeat)


@cache
def _plugins() -> dict[str, Any]:
    """By name; the catalogue is read once for each worker."""
    return {each.name: each for each in (*wrong_plugins(), *right_plugins())}


# ---- for a person --------------------------------------------------------------------------------


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
    said = f"{right.passed} passed"
    said += f", false alarms: {', '.join(right.alarms)}" if right.alarms else ""
    said += f", could not run: {', '.join(right.unproven)}" if right.unproven else ""
    return f"{right.seconds:6.1f} s  {right.name:<40} {said}"


def main() -> int:
    """Score, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="only what has it in its name")
    parser.add_argument("--own", action="store_true", help="each wrong one's own check, no more")
    parser.add_argument("--repeats", type=_count, default=3, help="of each right plugin")
    parser.add_argument("--workers", type=_count, default=1, help="processes at once")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep results, go on with it")
    parser.add_argument("--json", metavar="FILE", help="write all of it as a JSON document")
    parser.add_argument("--write", action="store_true", help="write docs/score.md")
    given = parser.parse_args()
    if given.write and (given.pattern or given.own):
        parser.error("--write writes the whole score: leave out PATTERN and --own")
    if given.record and given.own:
        parser.error("--record keeps what all checks of a kind say: leave out --own")
    try:
        record = Record(given.record)
    except (OSError, ValueError) as error:
        parser.error(f"--record: {error}")
    if len(record):
        print(f"{len(record)} results are in {given.record}, of {', '.join(record.trees)}")
    came = score(
        given.pattern,
        own=given.own,
        repeats=given.repeats,
        workers=given.workers,
        record=record,
    )
    print(f"{came.line} ({came.seconds:.0f} s)")
    document = came.document()
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - as it was typed
            json.dump(document, file, indent=2)
    if given.write:
        PAGE.write_text(page(document), encoding="utf-8")
    return 0 if came.is_whole else 1


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped: with --record FILE the same command goes on from there", file=sys.stderr)
        sys.exit(130)
