"""Declaration: where a backend says that its reads end, and what a run makes of its word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from warcore.contract import ForwardMode
from warcore.testkit.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.runs.results import Result, Results

REFUTED: Final = "refuted"
UNPROVEN: Final = "unproven"
PROVED: Final = "proved on these paths"
PROVED_FOR_GRAPH: Final = "proved for this graph"
COULD_BE_EARLIER: Final = "could be earlier"

GUARD: Final = "backend.no_late_access"
POISON: Final = "backend.overwritten"
ADDRESSES: Final = "backend.no_late_address"
EARLIER: Final = "backend.could_be_earlier"
SNAPSHOT: Final = "backend.snapshot_is_true"
REFUTING: Final = (GUARD, POISON, ADDRESSES, "backend.composite", SNAPSHOT)
"""The checks whose failure says that an end is declared too early."""
_NOTHING_RESTS: Final = (
    "nothing rests on it: a prefill is fine only with PRE_REPLAY, declared or from its snapshot"
)
_UNASKED: Final = "a step is coarse unless its snapshot says otherwise"
_EAGER = "eager"
_FAILED = {Outcome.FAILED, Outcome.EXPECTED_FAILURE}


@attrs.frozen
class Declaration:
    """The end that is declared for one mode, and the verdict on it."""

    mode: str
    """A value of ForwardMode: `decode`."""
    graphs: tuple[str, ...]
    """The kinds of graph under which it is declared so: values of GraphKind."""
    ends: str
    """`PRE_REPLAY`, `IN_REPLAY`, `POST_REPLAY` or `UNKNOWN`."""
    verdict: str | None
    """One of the words above, never a bare "proved"; None: there is nothing to judge."""
    why: str
    everywhere: bool = attrs.field(default=True, eq=False)
    """Whether it is the same under every kind of graph that was walked."""

    def __str__(self) -> str:
        how = ", ".join(_EAGER if graph == "none" else graph for graph in self.graphs)
        under = "" if self.everywhere else f" ({how})"
        said = f"{self.verdict} ({self.why})" if self.verdict else self.why
        return f"{self.mode.upper()}{under}: {self.ends} \u2014 {said}"


def declarations(results: Results) -> tuple[Declaration, ...]:
    """The verdict on each end that a backend declares, by mode; none for other kinds of plugin.

    Only of modes that the run has walked.
    Mixed steps are left out: they are coarse, whatever is declared for them.
    """
    told: dict[str, dict[str, str]] = {}
    for result in results.results:
        for graph, by_mode in result.ends.items():
            told.setdefault(graph, {}).update(by_mode)
    by_check = {result.check.name: result for result in results.results}
    found = []
    for mode in ForwardMode:
        if mode is not ForwardMode.MIXED:
            graphs: dict[str, list[str]] = {}
            for graph, by_mode in told.items():
                if mode.value in by_mode:
                    graphs.setdefault(by_mode[mode.value], []).append(graph)
            for ends, under in graphs.items():
                verdict, why = _verdict(mode.value, ends, under, by_check)
                alone = len(graphs) == 1
                found.append(Declaration(mode.value, tuple(under), ends, verdict, why, alone))
    return tuple(found)


def _verdict(
    mode: str, ends: str, graphs: list[str], by_check: dict[str, Result]
) -> tuple[str | None, str]:
    extends = mode == ForwardMode.EXTEND.value
    if ends == "UNKNOWN":
        told = by_check.get(SNAPSHOT) if extends else None
        asked = not extends or (told is not None and told.cells != 0)
        rest = "each step is coarse" if asked else _UNASKED
        return _of_snapshots(told, graphs) or (None, f"nothing is claimed: {rest}")
    earlier = by_check.get(EARLIER)
    lost = None if earlier is None else _could_be_earlier(earlier, f"{ends} for {mode} steps")
    if extends and ends != "PRE_REPLAY" and lost is None:
        # Such a prefill is coarse, so no check has looked behind the end that it declares.
        return _of_snapshots(by_check.get(SNAPSHOT), graphs) or (None, _NOTHING_RESTS)
    failed = [r for name in REFUTING if (r := by_check.get(name)) and r.outcome in _FAILED]
    for result in failed:
        seen = _seen(result, mode, graphs)
        if seen is not None:
            return REFUTED, seen
    guard, poison = (by_check.get(name) for name in (GUARD, POISON))
    if _passed(by_check.get(ADDRESSES)) and ends != "POST_REPLAY":
        return PROVED_FOR_GRAPH, "no address of the tables behind its event"
    if _passed(guard) and _passed(poison):
        proved = (PROVED, "guard clean, poison silent")
        return proved if lost is None else (COULD_BE_EARLIER, f"it is true; {lost}")
    return UNPROVEN, _because(guard, poison, *failed)


def _of_snapshots(told: Result | None, graphs: list[str]) -> tuple[str, str] | None:
    """The verdict on what a snapshot says of each prefill; None: it says nothing, or was not asked.

    told: what came of asking.
    """
    if told is None or told.outcome is Outcome.NOT_APPLICABLE:
        return None
    if _passed(told):
        return PROVED, "what its snapshot says of each batch"
    seen = _seen(told, ForwardMode.EXTEND.value, graphs) if told.outcome in _FAILED else None
    if seen is not None:
        return REFUTED, f"what its snapshot says: {seen}"
    return UNPROVEN, f"what its snapshot says: {_because(told)}"


def _could_be_earlier(result: Result, claim: str) -> str | None:
    """What it has seen where `claim` is declared; None: nothing that speaks for an earlier end."""
    failure = result.failure
    if result.outcome not in _FAILED or failure is None:
        return None
    others = {each.declared: each.observed for each in failure.elsewhere}
    return {**others, failure.declared: failure.observed}.get(claim)


def _seen(result: Result, mode: str, graphs: list[str]) -> str | None:
    """Who saw it in such a step, and in which one; None if nobody did.

    A failure without a cell is about every step; a mishap says nothing about any.
    """
    failure = result.failure
    if failure is None or failure.mishap:
        return None
    if not failure.cell:
        return _by(result, failure.seen_by)
    lines = [(failure.seen_by, (failure.cell, *failure.cells))]
    lines += [(each.seen_by, each.cells) for each in failure.elsewhere]
    for seen_by, cells in lines:
        for cell in cells:
            if any(cell.startswith(f"{mode}-{graph}-") for graph in graphs):
                return f"{_by(result, seen_by)}, in {cell}"
    return None


def _by(result: Result, seen_by: tuple[str, ...]) -> str:
    return f"seen by {', '.join(seen_by)}" if seen_by else str(result.check)


def _passed(result: Result | None) -> bool:
    return result is not None and result.outcome is Outcome.PASSED


def _because(*results: Result | None) -> str:
    """Why nobody knows: the first that did not pass."""
    return next(_reasons(results), f"{GUARD} and {POISON} were not both run")


def _reasons(results: tuple[Result | None, ...]) -> Iterator[str]:
    for result in results:
        if result is not None and result.outcome is not Outcome.PASSED:
            first = next(iter(result.why.splitlines()), "")
            yield f"{result.check}: {result.outcome.value}{f', {first}' if first else ''}"
