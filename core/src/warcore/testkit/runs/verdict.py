"""Verdict: how one check ended, found out in the process in which it runs."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import PluginError, WiringError
from warcore.testkit.access import Place
from warcore.testkit.detectors.faults import stolen
from warcore.testkit.detectors.used import forget, used
from warcore.testkit.outcome import (
    Elsewhere,
    Failure,
    NotApplicable,
    Outcome,
    Refuted,
    Unproven,
)
from warcore.testkit.packages.sources import KIT, homes_of, is_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warcore.testkit.runs.check import Function
    from warcore.testkit.subject import Subject

_SHOWN = 30
"""Lines of a traceback, at most: the last ones, where it happened."""


@attrs.frozen
class Verdict:
    """How a check ended, and why where that is no matter of course."""

    outcome: Outcome
    why: str = ""
    failure: Failure | None = None
    trace: str = ""
    """The traceback of an exception that was no verdict."""
    cells: int | None = None
    """How many cells it has looked at; None: it has none."""
    ends: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """By kind of graph and mode: the ends that a backend declares for the cells looked at."""
    largest: dict[str, int] = attrs.field(factory=dict)
    """The largest sizes of the cells looked at."""
    stolen: tuple[str, ...] = ()
    """Who took SIGSEGV away from the page guard meanwhile."""
    detectors: tuple[str, ...] = ()
    """Those that have looked, by name."""

    def plain(self) -> dict[str, Any]:
        """As JSON holds it; `of_plain` undoes it."""
        return {**attrs.asdict(self), "outcome": self.outcome.value}

    @classmethod
    def of_plain(cls, told: dict[str, Any]) -> Verdict:
        """Undo `plain`."""
        failure = told["failure"]
        if failure is not None:
            others = tuple(Elsewhere(**_tuples(each)) for each in failure["elsewhere"])
            failure = Failure(**{**_tuples(failure), "elsewhere": others})
        return cls(**{**_tuples(told), "outcome": Outcome(told["outcome"]), "failure": failure})


def _tuples(told: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}


def judge(
    run: Function,
    rule: str,
    subject: Subject,
    passing: type[BaseException] | tuple[()] = (),
) -> Verdict:
    """Run a check here, whatever it raises: SystemExit and KeyboardInterrupt are caught too.

    rule: what is declared, where the plugin's code raises instead of keeping to it.
    passing: what is not caught.
    """
    subject.offered.clear()
    subject.ends.clear()
    subject.largest.clear()
    forget()
    known = len(stolen())
    verdict = attrs.evolve(
        _judge(run, rule, subject, passing),
        ends=dict(subject.ends),
        largest=dict(subject.largest),
        stolen=tuple(dict.fromkeys(stolen()[known:])),
        detectors=used(),
    )
    if not subject.offered:
        return verdict
    if verdict.failure is None and (why := subject.unmet()):
        return Verdict(Outcome.NOT_APPLICABLE, why, cells=0)
    return attrs.evolve(verdict, cells=sum(subject.offered.values()))


def _judge(
    run: Function,
    rule: str,
    subject: Subject,
    passing: type[BaseException] | tuple[()],
) -> Verdict:
    try:
        run(subject)
    except Refuted as refuted:
        return Verdict(Outcome.FAILED, failure=refuted.failure)
    except NotApplicable as reason:
        return Verdict(Outcome.NOT_APPLICABLE, str(reason))
    except Unproven as reason:
        return Verdict(Outcome.UNPROVEN, str(reason))
    except passing:
        raise
    except BaseException as error:  # noqa: BLE001 - whose it is is what we find out
        return _raised(error, run, rule, subject)
    return Verdict(Outcome.PASSED)


def _raised(error: BaseException, run: Function, rule: str, subject: Subject) -> Verdict:
    """Whose exception it is: the plugin's if it came out of its code, else the kit's own."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    trace = "\n".join(trace.splitlines()[-_SHOWN:])
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    place = _place(error, run, homes_of(subject.cls))
    accused = place is not None or (
        # The core has looked at what the plugin declared, and refuses it by its name.
        isinstance(error, PluginError | WiringError) and subject.record.name in str(error)
    )
    if not accused:
        return Verdict(Outcome.UNPROVEN, f"an error of the test kit: {said}", trace=trace)
    where = "" if place is None else str(place)
    failure = Failure(rule, f"it raised {said}", where, mishap="raised")
    return Verdict(Outcome.FAILED, failure=failure, trace=trace)


def _place(error: BaseException, run: Function, homes: Sequence[str]) -> Place | None:
    """The innermost line of the plugin that led to `error`; None if the kit's own code raised it.

    Below a plugin's line there may be anything: torch, which it called, or the kit's own wrappers
    around torch. Only what the kit's code itself raised, and not what it called, is the kit's.
    """
    rule = getattr(getattr(run, "__code__", None), "co_filename", "")
    for each in _causes(error):
        frames = traceback.extract_tb(each.__traceback__)
        if not frames:
            continue
        last = frames[-1].filename
        if (last == rule or is_home(last, [KIT])) and not isinstance(each, PluginError):
            return None
        place = raised_at(each, homes)
        if place is not None:
            return place
    return None


def raised_at(error: BaseException | None, homes: Sequence[str]) -> Place | None:
    """The innermost line of `homes` that raised; of a SyntaxError the line that it is about."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Place(error.filename, error.lineno, (error.text or "").strip())
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error is not None else []):
        if is_home(frame.filename, homes):
            return Place(frame.filename, frame.lineno or 0, frame.line or "")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from: the core raises its own from those of plugins."""
    while error is not None:
        yield error
        error = error.__cause__
