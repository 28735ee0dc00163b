"""The report of a run: what a failure says to whoever mends it, and all of it for a program."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import attrs

from warcore import __version__
from warcore.testkit.mishaps import ADVICE
from warcore.testkit.outcome import Outcome
from warcore.testkit.runs.coverage import detectors, not_covered
from warcore.testkit.runs.declaration import declarations
from warcore.testkit.runs.lastreport import NOT_CONFORMANT
from warcore.testkit.runs.results import CONFORMANT, NO_VERDICT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.outcome import Elsewhere, Failure
    from warcore.testkit.runs.declaration import Declaration
    from warcore.testkit.runs.results import Result, Results
    from warcore.testkit.subject import Subject

SCHEMA = 1
_SHOWN = 20
"""Of what was printed, and of a traceback, at most: the last ones."""


def told(result: Result, subject: Subject) -> Iterator[tuple[str, str]]:
    """What a failed check has to say, as (heading, text); a text may have several lines."""
    failure, check = result.failure, result.check
    if failure is None:
        yield "why", result.why
    else:
        yield "declared", failure.declared
        yield "observed", failure.observed
        yield "at", failure.where
        yield "seen by", ", ".join(failure.seen_by)
        advice = ADVICE.get(failure.mishap)
        if not result.stale:
            yield "so what", check.incident if advice is None else advice.so_what
            yield "mend it", failure.mend or (check.mend if advice is None else advice.mend)
    yield "just this", command(result, subject)
    if failure is not None:
        yield "and", _more(failure)
        yield "also", "\n".join(f"{e.declared}: {e.observed}" for e in _words(failure))
        yield "also at", "\n".join(_line(each) for each in _lines(failure))
    yield "it printed", _end(result.output)
    yield "trace", _end(result.trace)


def _more(failure: Failure) -> str:
    """What else fails, counted."""
    more, others = failure.more, _lines(failure)
    parts = []
    if more and failure.cells:
        line = "the same line" if failure.where else "a line that no detector knows"
        parts.append(f"{_count(more, 'more cell fails', 'more cells fail')} at {line}")
    elif more:
        parts.append(f"{more} more of the kind")
    if others:
        cells = len({cell for each in others for cell in each.cells})
        lines = _count(len(others), "other line", "other lines")
        parts.append(f"{_count(cells, 'cell fails', 'cells fail')} at {lines}")
    return ", and ".join(parts)


def _words(failure: Failure) -> list[Elsewhere]:
    """What else is declared at its line, and wrong."""
    return [other for other in failure.elsewhere if other.where == failure.where]


def _lines(failure: Failure) -> list[Elsewhere]:
    return [other for other in failure.elsewhere if other.where != failure.where]


def _line(other: Elsewhere) -> str:
    """Where else, in a line."""
    where = other.where or "a line that no detector knows"
    return f"{where}  ({_count(len(other.cells), 'cell', 'cells')}, first {other.cells[0]})"


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def command(result: Result, subject: Subject) -> str:
    """The command that repeats a check, on the cell in which it failed."""
    record = subject.record
    if record.distribution is None:
        return f"pytest -k {shlex.quote(result.check.name)}"
    words = _words_of(subject, result.check.name)
    if result.failure is not None and result.failure.cell:
        words += ["--cell", result.failure.cell]
    return shlex.join(words)


def again(results: Results) -> str:
    """The command that repeats a whole run of an installed plugin."""
    words = _words_of(results.subject, results.selection.pattern)
    if results.subject.cells:
        words += ["--cell", results.subject.cells]
    return shlex.join(words)


def _words_of(subject: Subject, pattern: str) -> list[str]:
    """What to type for some checks of an installed plugin."""
    record = subject.record
    words = ["warcore", "check", f"{record.kind}:{record.name}"]
    if pattern:
        words += ["-k", pattern]
    if subject.device != "host":
        words += ["--device", subject.device]
    if subject.thorough:
        words.append("--all")
    if subject.reference is not None:
        words += ["--reference", subject.reference]
    for key, text in subject.set_options.items():
        words += ["--opt", f"{record.name}.{key}={text}"]
    return words


def as_text(result: Result, subject: Subject) -> str:
    """A failed check in indented lines, below its name."""
    lines = [f"{result.check}: {result.outcome.value}"]
    for heading, text in told(result, subject):
        if text:
            first, *more = text.splitlines()
            lines += [f"    {heading:<11}{first}", *(f"    {'':11}{line}" for line in more)]
    return "\n".join(lines)


def summed(results: Results) -> str:
    """The counts, which sum to the total, in a line."""
    parts = [f"{n} {outcome.value}" for outcome, n in results.counts.items() if n]
    count = "1 check" if results.total == 1 else f"{results.total} checks"
    return f"{count}: {' · '.join(parts)}"


def verdict(results: Results) -> str:
    """What it comes to, in a word."""
    if results.code == CONFORMANT:
        return "conformant"
    return "could not run" if results.code == NO_VERDICT else NOT_CONFORMANT


def document(results: Results) -> dict[str, Any]:
    """All of it as one JSON document."""
    subject, platform = results.subject, dict(results.platform)
    platform.pop("detectors")
    fields = ("kind", "name", "distribution", "version", "entry_point", "requires")
    return {
        "schema": SCHEMA,
        "warcore": __version__,
        "plugin": {name: getattr(subject.record, name) for name in fields},
        "contract": results.contract,
        "device": subject.device,
        "platform": platform,
        "detectors": [attrs.asdict(detector) for detector in detectors(results)],
        "pattern": results.selection.pattern or None,
        "cells": subject.cells or None,
        "thorough": subject.thorough,
        "reference": subject.reference,
        "options": subject.set_options,
        "available": results.selection.available,
        "total": results.total,
        "counts": {outcome.value: count for outcome, count in results.counts.items()},
        "verdict": verdict(results),
        "declarations": [_declaration(each) for each in declarations(results)],
        "checks": [_check(result, subject) for result in results.results],
        "not_covered": list(not_covered(results)),
    }


def _declaration(declaration: Declaration) -> dict[str, Any]:
    return attrs.asdict(declaration, filter=lambda field, _: field.name != "everywhere")


def _check(result: Result, subject: Subject) -> dict[str, Any]:
    check, failure = result.check, result.failure
    repeat = result.outcome not in {Outcome.PASSED, Outcome.NOT_APPLICABLE}
    return {
        "name": check.name,
        "level": check.level,
        "since": check.since,
        "counted": result.counted,
        "outcome": result.outcome.value,
        "why": result.why or None,
        "seconds": round(result.seconds, 3),
        "isolated": not result.here,
        "failure": None if failure is None else attrs.asdict(failure),
        "output": result.output or None,
        "trace": result.trace or None,
        "next": command(result, subject) if repeat else None,
    }


def _end(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_SHOWN:])
