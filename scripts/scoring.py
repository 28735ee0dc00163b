"""Scoring: wrong plugins and right ones under the checks, each check in a process as ever."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from tree_rules.sources import distributions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "core/tests"))

from wrong_plugins.catalogue import entries, under_check  # noqa: E402 - found by the line above

from warcore.registry import find_plugins  # noqa: E402
from warcore.testkit.outcome import Outcome  # noqa: E402
from warcore.testkit.runs.check import checks_of  # noqa: E402
from warcore.testkit.runs.running import Run  # noqa: E402
from warcore.testkit.runs.selection import Selection  # noqa: E402
from warcore.testkit.subject import Subject  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from warcore.testkit.runs.check import Check
    from warcore.testkit.runs.isolation import Isolation
    from warcore.testkit.runs.results import Result


@attrs.frozen
class Found:
    """What the checks say of one wrong plugin."""

    entry: Any
    """Of the catalogue."""
    red: tuple[str, ...]
    """The checks that it fails."""
    seen_by: tuple[str, ...]
    """The detectors that saw what it fails its own check for."""
    unproven: tuple[str, ...]
    """The checks that could not run."""
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether its check is red and no other, and the detectors that it names saw why."""
        return self.red == (self.entry.breaks,) and set(self.entry.detectors) <= set(self.seen_by)


@attrs.frozen
class Cleared:
    """What the checks say of one right plugin, in one repeat or in several together."""

    name: str
    runs: int
    passed: int
    """How many checks it passes the first time."""
    alarms: tuple[str, ...]
    """The checks that it failed, once for each time."""
    unproven: tuple[str, ...]
    """The checks that could not run, once for each time."""
    seconds: float

    @classmethod
    def of(cls, repeats: Sequence[Cleared]) -> Cleared:
        """What several came to, the first of them first."""
        return cls(
            repeats[0].name,
            sum(each.runs for each in repeats),
            repeats[0].passed,
            tuple(name for each in repeats for name in each.alarms),
            tuple(name for each in repeats for name in each.unproven),
            sum(each.seconds for each in repeats),
        )


@attrs.frozen
class Right:
    """A plugin that should pass: one of the catalogue, or of this repository."""

    name: str
    subject: Callable[[Path], Any]
    """The context in which it is a Subject; a package may be installed in the folder given."""
    checks: tuple[Check, ...]

    def __str__(self) -> str:
        return self.name


def wrong_plugins(pattern: str = "") -> list[Any]:
    """The wrong ones of the catalogue whose name or check holds `pattern`."""
    return [e for e in entries() if not e.is_right and pattern in f"{e.name} {e.breaks}"]


def right_plugins(pattern: str = "") -> list[Right]:
    """The right ones of the catalogue, then the installed plugins of this repository."""

    def of_catalogue(entry: Any) -> Right:
        return Right(entry.name, lambda site: under_check(entry, site, imported=False), _of(entry))

    def of_repository(record: Any) -> Right:
        subject = Subject(record, None)
        name = f"{record.kind}:{record.name}"
        return Right(name, lambda _: nullcontext(subject), Selection.of(record.kind).checks)

    ours = {project["name"] for _, project in distributions(ROOT)}
    rights = [of_catalogue(entry) for entry in entries() if entry.is_right]
    rights += [of_repository(each) for each in find_plugins() if each.distribution in ours]
    return [each for each in rights if pattern in each.name]


def held(entry: Any, isolation: Isolation, *, own: bool = False) -> Found:
    """A wrong plugin, held to the checks of its kind; of its package, if that is what it breaks.

    own: only to the check that it breaks, without those that come before it.
    """
    checks = tuple(c for c in _of(entry) if not own or c.name == entry.breaks)
    with (
        tempfile.TemporaryDirectory() as folder,
        under_check(entry, Path(folder, "site"), imported=False) as subject,
    ):
        results = _results(subject, checks, isolation)
    failed = {r.check.name: r.failure for r in results if r.outcome is Outcome.FAILED}
    failure = failed.get(entry.breaks)
    return Found(
        entry,
        tuple(failed),
        () if failure is None else failure.seen_by,
        tuple(r.check.name for r in results if r.outcome is Outcome.UNPROVEN),
        sum(result.seconds for result in results),
    )


def cleared(right: Right, isolation: Isolation, *, first: bool = True) -> Cleared:
    """A right plugin, held once to all its checks, or once more to those of its kind.

    What is asked of every plugin (its package, its import) has nothing that chance could change;
    first: whether that is asked at all.
    """
    checks = [check for check in right.checks if check.kind is not None or first]
    with tempfile.TemporaryDirectory() as folder, right.subject(Path(folder, "s")) as subject:
        results = _results(subject, checks, isolation)
    alarms = {Outcome.FAILED, Outcome.BLOCKED}
    return Cleared(
        right.name,
        1,
        sum(result.outcome is Outcome.PASSED for result in results),
        tuple(r.check.name for r in results if r.outcome in alarms),
        tuple(r.check.name for r in results if r.outcome is Outcome.UNPROVEN),
        sum(result.seconds for result in results),
    )


def _of(entry: Any) -> tuple[Check, ...]:
    return tuple(check for check in checks_of(entry.kind) if check.kind == entry.owner)


def _results(subject: Subject, checks: Iterable[Check], isolation: Isolation) -> list[Result]:
    checks = tuple(checks)
    selection = Selection(checks, len(checks))
    with Run(subject, {}, isolation) as run:
        return [run.result(check, selection) for check in checks]
