"""What came of a check: outcomes, and what a failure has to say."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from warcore.testkit.mishaps import Mishap


class Outcome(enum.Enum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED_FAILURE = "expected failure"
    """It failed, and its author has said so, with a reason."""
    NOT_APPLICABLE = "not applicable"
    """The plugin does not do what the check is about, and says so."""
    BLOCKED = "blocked"
    """A check that it stands on has failed."""
    UNPROVEN = "could not run"
    """A detector could not work here, or the baseline does not repeat: no verdict, never green."""


@attrs.frozen
class Elsewhere:
    """One more line at which the rule of a failed check is broken, or word that breaks it there."""

    declared: str
    """As of a Failure, in the first of its cells."""
    observed: str
    where: str
    seen_by: tuple[str, ...]
    cells: tuple[str, ...]
    """Every cell that fails at this line."""


@attrs.frozen
class Failure:
    """Why a check failed, for whoever has to mend it."""

    declared: str
    """What the plugin claims."""
    observed: str
    """What happened instead: buffer, range, phase, layer, operation."""
    where: str = ""
    """file:line: the source line; empty if no detector could tell."""
    seen_by: tuple[str, ...] = ()
    """The detectors that saw it."""
    cell: str = ""
    """The cell of the grid in which it was seen first; the check can be repeated on it alone."""
    more: int = 0
    """How many more cells fail at the same line; without `cells`, how many more of the kind."""
    cells: tuple[str, ...] = ()
    """Every cell that fails at this line; empty where the check ends with the first."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """The other lines at which cells fail, by their first cell; or the other words at this line."""
    mishap: Mishap = ""
    """What befell the check, if it has not seen its rule broken: then that is the failure."""
    mend: str = ""
    """How to mend just this, where the check or the mishap knows it for the whole kind only."""


class Refuted(Exception):
    """Raised by a check: the plugin breaks the rule."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.observed)
        self.failure = failure


class NotApplicable(Exception):
    """Raised by a check: the plugin does not do what the check is about. The text says why."""


class Unproven(Exception):
    """Raised by a check: it cannot give a verdict here. The text says why."""
