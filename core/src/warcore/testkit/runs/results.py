"""Results: what came of every check of a run, and what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.testkit.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore.testkit.outcome import Failure
    from warcore.testkit.runs.check import Check
    from warcore.testkit.runs.selection import Selection
    from warcore.testkit.subject import Subject

CONFORMANT, REFUTED, NO_VERDICT = 0, 1, 2
"""Exit codes."""


@attrs.frozen
class Result:
    """One check and how it ended."""

    check: Check
    outcome: Outcome
    why: str = ""
    failure: Failure | None = None
    trace: str = ""
    output: str = ""
    """What was printed meanwhile, the end of it."""
    seconds: float = 0.0
    counted: bool = True
    """Not if the check is newer than the plugin's contract."""
    stale: bool = False
    """Whether it was listed as a known failure, and passes or does not apply."""
    cells: int | None = None
    """How many cells of a grid it has looked at; None: it has none."""
    ends: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """By kind of graph and mode: the ends that a backend declares for the cells looked at."""
    largest: Mapping[str, int] = attrs.field(factory=dict)
    """The largest sizes of the cells looked at."""
    stolen: tuple[str, ...] = ()
    """Who took SIGSEGV away from the page guard meanwhile."""
    detectors: tuple[str, ...] = ()
    """Those that have looked, by name."""
    after: Result | None = None
    """The check whose outcome decided that this one was not run: the first of a chain of them."""
    here: str = ""
    """Why it ran in the process of whoever asked, with nothing between; empty if it did not."""

    @property
    def refutes(self) -> bool:
        """Whether it makes the plugin not conformant: it may fail what it SHOULD do."""
        must = self.check.level == "MUST" or self.stale
        return self.counted and must and self.outcome is Outcome.FAILED

    @property
    def leaves_open(self) -> bool:
        """Whether nobody can say after it that the plugin is conformant."""
        blocked = self.outcome is Outcome.BLOCKED and self.check.level == "MUST"
        return self.counted and (blocked or self.outcome is Outcome.UNPROVEN)


@attrs.frozen
class Results:
    """A run."""

    subject: Subject
    selection: Selection
    contract: str
    """The minor of warcore to which the plugin is written."""
    results: tuple[Result, ...]
    """One for each check of the selection; before them `plugin.loads`, if that has failed them."""
    platform: Mapping[str, Any]
    interrupted: bool = False
    """Whether Ctrl-C came before the last check had ended."""

    @property
    def total(self) -> int:
        """How many checks count: the outcomes always sum to it."""
        return sum(result.counted for result in self.results)

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many of those that count ended in each way."""
        counted = [result.outcome for result in self.results if result.counted]
        return {outcome: counted.count(outcome) for outcome in Outcome}

    @property
    def ran(self) -> int:
        """How many checks of the selection came to an end."""
        return sum(result.check in self.selection.checks for result in self.results)

    @property
    def whole(self) -> bool:
        """Whether no check and no cell of the grid was left out, by request or for Ctrl-C."""
        return not (self.selection.pattern or self.subject.cells or self.interrupted)

    @property
    def unmet(self) -> bool:
        """Whether a cell was asked for that none of the checks has."""
        return bool(self.subject.cells) and not any(result.cells for result in self.results)

    @property
    def code(self) -> int:
        """The exit code: 0 conformant, 1 not, 2 it could not be found out."""
        if any(result.refutes for result in self.results):
            return REFUTED
        leaves_open = (
            self.interrupted or self.unmet or any(result.leaves_open for result in self.results)
        )
        if leaves_open or not self.counts[Outcome.PASSED]:
            return NO_VERDICT
        return CONFORMANT
