"""Answers of whole engines, held against those that a reference run has given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.errors import WarcoreError
from warcore.testkit.outcome import Failure, Refuted, Unproven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from warcore.testkit.engines.workload import Answer, Asked, Served, Workload
    from warcore.testkit.subject import Subject

    Excused = Callable[[Asked, Answer], object]


def _nobody(asked: Asked, got: Answer) -> bool:  # noqa: ARG001
    return False


def refuse_failures(served: Served | None, cell: str) -> None:
    """Refuted if a step of an engine failed. None: it has served nobody."""
    if served is not None and served.error is not None:
        raise Refuted(Failure("steps that run in a whole engine", served.error, cell=cell))


def refuse_other_answers(
    load: Workload, got: Served, owed: Served, failure: Failure, excused: Excused = _nobody
) -> None:
    """Refuted, by `failure`, if a request of `load` was answered otherwise than it is owed.

    failure: without what is observed, or with the beginning of the sentence that says it.
    excused: asked of a request and what it got, whether that is judged elsewhere.
    """
    for asked, mine, right in zip(load.requests, got.answers, owed.answers, strict=True):
        if not load.agree(asked, mine, right) and not excused(asked, mine):
            told = mine.error or [*mine.tokens]
            what = f"{asked.prompt!r} is answered {told}, and not {[*right.tokens]}"
            raise Refuted(attrs.evolve(failure, observed=f"{failure.observed}{what}"))


def refuse_other_schedules(
    subject: Subject,
    load: Workload,
    name: str,
    seeds: Iterable[int],
    *,
    serial: Workload | None = None,
    excused: Excused = _nobody,
) -> None:
    """Refuted if an engine answers in a schedule, the cell seedN-NAME, not as in its serial run.

    Unproven if the serial run does not repeat. serial: who serves it first, in place of `load`.
    """
    cells = {f"seed{seed}-{name}": seed for seed in seeds}
    wanted = [cell for cell in cells if subject.wants(cell)]
    if not wanted:
        return
    owed = (serial or load).run()
    if owed != load.run():
        raise Unproven(f"{name}: the same serial run twice gives different answers")
    refuse_failures(owed, name)
    declared = "the answers of the serial run in every schedule"
    for cell in wanted:
        drawn = _drawn(load, cells[cell], cell)
        failure = Failure(declared, "", seen_by=("seeded schedules",), cell=cell)
        refuse_other_answers(load, drawn, owed, failure, excused)


def _drawn(load: Workload, seed: int, cell: str) -> Served:
    try:
        return load.run(f"seeded:{seed}")
    except WarcoreError as error:
        what = f"with seed {seed} the engine stops: {error.what}"
        declared = "an engine that goes on in every schedule"
        raise Refuted(Failure(declared, what, cell=cell)) from error
