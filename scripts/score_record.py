"""The record of a score: results that outlive the run, a line of JSON for each."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs
from scoring import Cleared, Found

ROOT = Path(__file__).resolve().parent.parent
_WHO: Final = {"entry", "name"}
"""What the task of a result tells already."""


@attrs.frozen
class Task:
    """One thing to do: to hold a wrong plugin to its checks, or a right one once more."""

    plugin: str
    repeat: int | None
    """Counted from 0; None for a wrong plugin."""

    @property
    def result(self) -> type[Found | Cleared]:
        """What it comes to."""
        return Found if self.repeat is None else Cleared


@attrs.frozen
class _Line:
    tree: str
    facts: dict[str, Any]


@attrs.frozen
class Record:
    """What is known of each task, in memory and, where there is a file, in that.

    A file that is there already is gone on with, whatever state of the tree its lines are of: each
    names it, and so does the page. ValueError for a line that is no result.
    """

    file: Path | None = None
    _lines: dict[Task, _Line] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.file is None or not self.file.exists():
            return
        for number, text in enumerate(self.file.read_text(encoding="utf-8").splitlines(), 1):
            task, line = _read(text, f"{self.file}, line {number}")
            self._lines[task] = line

    def __contains__(self, task: Task) -> bool:
        return task in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, task: Task, tree: str, came: Found | Cleared) -> None:
        """Keep what came of a task in this state of the tree."""
        facts = {name: getattr(came, name) for name in _names(task.result)}
        self._lines[task] = _Line(tree, facts)
        if self.file is not None:
            line = {**attrs.asdict(task), "tree": tree, **facts}
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")

    def found(self, entry: Any) -> Found:
        """What came of a wrong plugin, by its entry in the catalogue. KeyError if it never ran."""
        return Found(entry, **self._lines[Task(entry.name, None)].facts)

    def cleared(self, name: str) -> Cleared:
        """What came of a right plugin in all its repeats. KeyError if it never ran."""
        repeats = {
            task.repeat: Cleared(name, **line.facts)
            for task, line in self._lines.items()
            if task.plugin == name and task.repeat is not None
        }
        if not repeats:
            raise KeyError(name)
        return Cleared.of([repeats[repeat] for repeat in sorted(repeats)])

    @property
    def trees(self) -> list[str]:
        """The states of the tree that the results are of."""
        return sorted({line.tree for line in self._lines.values()})


def _names(result: type) -> list[str]:
    return [field.name for field in attrs.fields(result) if field.name not in _WHO]


def _read(text: str, where: str) -> tuple[Task, _Line]:
    try:
        said = json.loads(text)
        task = Task(said["plugin"], said["repeat"])
        facts = {name: said[name] for name in _names(task.result)}
        tree = said["tree"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where} is no result ({error!r}): take it out") from error
    lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
    return task, _Line(tree, facts | lists)


def tree() -> str:
    """The state of the tree: its commit, and whether something has changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=, with changes"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "no commit"
