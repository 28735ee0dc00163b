"""Running: hold a plugin to every check, each after those that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import ConfigError
from warcore.testkit.environment import time_limit
from warcore.testkit.outcome import Failure, Outcome
from warcore.testkit.runs.aftermath import NotHere
from warcore.testkit.runs.check import LOADS, loads_check
from warcore.testkit.runs.inprocess import run_here
from warcore.testkit.runs.isolation import Isolation
from warcore.testkit.runs.results import Result, Results
from warcore.testkit.runs.selection import Selection, contract_of, is_newer, wrong_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from warcore.testkit.runs.aftermath import Ended
    from warcore.testkit.runs.check import Check
    from warcore.testkit.subject import Subject


def run_checks(
    subject: Subject,
    pattern: str = "",
    *,
    known_failures: Mapping[str, str] | None = None,
    isolation: Isolation | None = None,
    starts: Callable[[Check], None] = lambda _: None,
    ends: Callable[[Result], None] = lambda _: None,
) -> Results:
    """Hold `subject` to every check of its kind whose name fits `pattern`, and to what they need.

    Its class may be None: each check loads it, in a process of its own. known_failures: the reason
    for each check that it fails and SHOULD not. isolation: to be used and left open, instead of one
    of its own. starts and ends are told of each check.

    ConfigError if no check fits, if none of those that do has the cells that were asked for, or for
    an entry of `known_failures` that no check or a MUST has, or that has no reason. Interrupted for
    a Ctrl-C once the first check has ended.
    """
    known = known_failures or {}
    selection = Selection.of(subject.record.kind, pattern)
    for error in wrong_entries(known, Selection.of(subject.record.kind).checks).values():
        raise error
    with Run(subject, known, isolation) as run:
        if subject.cells:
            run.refuse_unmet(selection)
        results: list[Result] = []

        def tell(result: Result) -> None:
            results.append(result)
            ends(result)

        def found(*, interrupted: bool = False) -> Results:
            contract = contract_of(subject.record)
            every = tuple(results)
            return Results(subject, selection, contract, every, run.platform, interrupted)

        try:
            for check in selection.checks:
                starts(check)
                result = run.result(check, selection)
                first = run.unloadable
                if first is not None and all(first.check is not told.check for told in results):
                    tell(first)
                if result is not first:
                    tell(result)
        except KeyboardInterrupt as pressed:
            if not results:
                raise
            raise Interrupted(found(interrupted=True)) from pressed
        return found()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came in a run."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self.results = results
        """What was found until then."""


class Run:
    """Results of checks, each found once; what a check needs comes before it. A context manager."""

    def __init__(
        self,
        subject: Subject,
        known_failures: Mapping[str, str],
        isolation: Isolation | None = None,
    ) -> None:
        self._subject = subject
        self._known = known_failures
        self._contract = contract_of(subject.record)
        self._seconds = time_limit(thorough=subject.thorough)
        self._results: dict[str, Result] = {}
        self._isolation = isolation
        self._lent = isolation is not None
        self._here = ""
        self.unloadable: Result | None = None
        """What came of `plugin.loads`, once the plugin could not be loaded for any check."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that the checks are born in, if it is its own."""
        if self._isolation is not None and not self._lent:
            self._isolation.close()
            self._isolation = None

    @property
    def platform(self) -> Mapping[str, Any]:
        """Where the checks run: versions, and by each detector's name why it cannot work here."""
        if self._here:
            from warcore.testkit.runs.nursery import describe_platform

            return describe_platform()
        return self._nursery().platform

    def result(self, check: Check, selection: Selection) -> Result:
        """What comes of `check`. selection: where those are that it needs."""
        if check.name not in self._results:
            before = [
                self.result(each, selection)
                for each in selection.checks
                if each.name in (*check.needs, *check.after)
                and self._subject.device in each.devices
            ]
            result = self._without(before, check)
            if result is None:
                result = self._found(check)
            counted = not is_newer(check, self._contract)
            result = attrs.evolve(result, counted=counted)
            if check.name in self._known and self._subject.device in check.devices:
                result = _expected(result, self._known[check.name])
            self._results[check.name] = result
        return self._results[check.name]

    def _without(self, before: list[Result], check: Check) -> Result | None:
        """The result of a check that was not run, for what comes before; None if it can be run."""
        if self.unloadable is not None and check.loads and check.name != LOADS:
            return _not_loaded(check, self.unloadable)
        if self._subject.device not in check.devices:
            where = " or ".join(check.devices)
            return Result(check, Outcome.NOT_APPLICABLE, f"it is held on {where} only")
        for outcome, then in (
            (Outcome.FAILED, Outcome.BLOCKED),
            (Outcome.EXPECTED_FAILURE, Outcome.BLOCKED),
            (Outcome.BLOCKED, Outcome.BLOCKED),
            (Outcome.UNPROVEN, Outcome.UNPROVEN),
            (Outcome.NOT_APPLICABLE, Outcome.NOT_APPLICABLE),
        ):
            for each in before:
                optional = then is not Outcome.BLOCKED and each.check.name in check.after
                # One without the cell that was asked for says nothing against this one.
                if each.outcome is outcome and not optional and each.cells != 0:
                    root = each.after or each
                    return Result(check, then, _because(root), after=root)
        return None

    def refuse_unmet(self, selection: Selection) -> None:
        """ConfigError if no check that was asked for has a cell that was: before what they need
        runs in vain.

        Each is called to say which cells it has, and looks at none of them.
        """
        found = []
        dry = attrs.evolve(self._subject, dry=True)
        for check in selection.checks:
            # What holds for every kind of plugin walks no grid.
            asked = check.name in selection.asked and check.kind is not None
            if asked and self._subject.device in check.devices:
                verdict = self._ended(check, dry).verdict
                if verdict.cells or verdict.failure is not None:
                    return
                if verdict.cells == 0:
                    found.append(f"{check}: {verdict.why}")
        if found:
            more = f"; likewise {len(found) - 1} more" if len(found) > 1 else ""
            raise ConfigError(
                f"{found[0]}{more}",
                next="--cell with one of the names, or a pattern such as 'decode-*'",
            )

    def _found(self, check: Check) -> Result:
        ended = self._ended(check, self._subject)
        if ended.loaded:
            return self._result(check, ended)
        loads = loads_check()
        self.unloadable = self._results[LOADS] = attrs.evolve(
            self._result(loads, ended), counted=not is_newer(loads, self._contract)
        )
        if check.name == LOADS:
            return self.unloadable
        return _not_loaded(check, self.unloadable)

    def _result(self, check: Check, ended: Ended) -> Result:
        verdict = ended.verdict
        return Result(
            check,
            verdict.outcome,
            verdict.why,
            verdict.failure,
            verdict.trace,
            ended.output,
            ended.seconds,
            cells=verdict.cells,
            ends=verdict.ends,
            largest=verdict.largest,
            stolen=verdict.stolen,
            detectors=verdict.detectors,
            here=self._here,
        )

    def _ended(self, check: Check, subject: Subject) -> Ended:
        if not self._here:
            try:
                return self._nursery().run(check, subject, self._seconds)
            except NotHere as reason:
                self.close()
                self._here = str(reason)
        return run_here(check, subject)

    def _nursery(self) -> Isolation:
        if self._isolation is None:
            self._isolation = Isolation()
        return self._isolation


def _not_loaded(check: Check, loads: Result) -> Result:
    then = Outcome.BLOCKED if loads.outcome is Outcome.FAILED else loads.outcome
    return Result(check, then, _because(loads), after=loads)


def _because(need: Result) -> str:
    """What became of a check that other ones stand on, and why, in a line."""
    why = need.why if need.failure is None else need.failure.observed
    first = next(iter(why.splitlines()), "")
    return f"{need.check}: {need.outcome.value}{f', {first}' if first else ''}"


def _expected(result: Result, reason: str) -> Result:
    """A result that its author has foretold."""
    if result.outcome is Outcome.FAILED:
        return attrs.evolve(result, outcome=Outcome.EXPECTED_FAILURE, why=reason)
    if result.outcome is Outcome.PASSED:
        what = "it passes"
    elif result.outcome is Outcome.NOT_APPLICABLE and result.cells != 0:
        what = f"it does not apply: {result.why}"
    else:
        return result
    failure = Failure(
        f"that it fails {result.check}: {reason}", f"{what}; strike it out of known_failures"
    )
    return attrs.evolve(result, outcome=Outcome.FAILED, failure=failure, stale=True)
