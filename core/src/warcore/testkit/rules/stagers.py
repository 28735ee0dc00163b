"""What a stager promises by True, and that it costs nothing but overlap."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING

import attrs

from warcore.testkit.engines.answers import refuse_other_answers
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.engineraces import refuse_races
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.laterreaders import CASES, staged_workload
from warcore.testkit.engines.latesteps import is_prefill, look, told
from warcore.testkit.engines.specworkload import workload
from warcore.testkit.engines.stagelog import StageLog
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import definition, line_of
from warcore.testkit.runs.check import check
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.engines.laterreaders import Case
    from warcore.testkit.engines.workload import Workload
    from warcore.testkit.subject import Subject

CALL = 2
"""It is the call of this number that the kit lets fail."""
CHOSEN = ("stager.why_not",)


@check("stager")
def why_not(subject: Subject) -> None:
    """`why_not` gives texts, from what an algorithm declares: the same each time, and the same for
    an algorithm of another name.

    Which algorithms a piece of an engine could serve was a list of families; each new one was
    forgotten in it until one ended in a fault, and a predicate on capabilities took its place
    (SGLang #39502).

    Ask `later_prefill_reader`, `tree` and the like; never compare names or classes.
    """
    cls = subject.cls
    for case in filter(subject.wants, CASES):
        renamed = type("Another", (case.algorithm,), {"__module__": "elsewhere"})
        first, again, other = map(cls.why_not, (case.algorithm, case.algorithm, renamed))
        where = definition(cls, "why_not")
        if not isinstance(first, list) or not all(isinstance(r, str) and r for r in first):
            raise Refuted(Failure("a list of texts", f"it is {first!r}", where, cell=str(case)))
        if first != again:
            raise Refuted(Failure("the same reasons", f"it is {again!r}", where, cell=str(case)))
        if first != other:
            what = f"{first} becomes {other} where the same algorithm has another name"
            raise Refuted(Failure("reasons from what is declared", what, where, cell=str(case)))


def _cases(subject: Subject) -> Iterator[Case]:
    """Those that it says it can serve. NotApplicable, with its reasons, if there is none."""
    reasons = {case.name: subject.cls.why_not(case.algorithm) for case in CASES}
    if all(reasons.values()):
        said = dict.fromkeys(reason for given in reasons.values() for reason in given)
        raise NotApplicable(f"it serves no algorithm of the kit's: {'; '.join(said)}")
    for case in CASES:
        if not reasons[case.name] and subject.wants(case):
            yield case


@check("stager", needs=CHOSEN, devices=("host",))
def strict_bool(subject: Subject) -> None:
    """`stage` returns True or False, and nothing that only looks like it, for each batch; and
    raises nothing.

    No public incident is known. A tensor or a count is true where it should not be; the core takes
    none for a yes, and the step is as late as without a stager, with a reason that nobody reads.

    `return all(...)` of comparisons; say False where you cannot stage, in place of raising.
    """
    for case in _cases(subject):
        log = StageLog()
        staged_workload(subject, case, stages=log).run()
        odd = [answer for answer in log.answers if type(answer) is not bool]
        if log.errors or odd:
            what = f"it raised {log.errors[0]!r}" if log.errors else f"it returned {odd[0]!r}"
            where = line_of(log.errors[0], subject.cls) if log.errors else _stage(subject)
            raise Refuted(Failure("True or False for each batch", what, where, cell=str(case)))


def _stage(subject: Subject) -> str:
    return definition(subject.cls, "stage")


@check("stager", needs=("stager.strict_bool",), after=("stager.true_is_true",), devices=("host",))
def costs_overlap_only(subject: Subject) -> None:
    """Whatever a stager answers, and if it fails half-way, the answers stay those of the target.

    It runs between the metadata of a prefill and its layers: what it leaves changed in the batch is
    what the target computes with, and nothing says so (corruption of that kind is silent; only a
    run without it told, as in SGLang #34959).

    Write into memory from `ctx.static` alone; leave the batch and the caches as they are.
    """
    for case in _cases(subject):
        alone = {"requests": case.requests, "backend": case.backend, **case.sizes}
        owed = workload(subject, None, **alone).run()
        for name, instead in (("", _own), ("False", _declines), ("an error", _fails)):
            load = staged_workload(subject, case, stages=StageLog(instead=instead))
            after = f"after {name} in its place, " if name else ""
            declared = "the answers of the target alone"
            failure = Failure(declared, after, _stage(subject), cell=str(case))
            refuse_other_answers(load, load.run(), owed, failure)


def _own(call: int) -> bool | None:
    del call
    return None


def _declines(call: int) -> bool | None:
    return False if call == CALL else None


def _fails(call: int) -> bool | None:
    if call == CALL:
        raise RuntimeError("a failure of the kit's own")
    return None


@check("stager", needs=("stager.strict_bool",), devices=("host",))
def true_is_true(subject: Subject) -> None:
    """After True nothing shared is read in that step any more: not by any draft, nor by a backend
    that reads in its layers.

    True lets the target's prefill publish its event before its layers run, and the page table is
    rewritten while a draft's prefill has not begun. One engine published for a draft whose own
    pass still gathered from the table: wrong pages, and no error (SGLang #36335, #37988).

    Stage every runner of `ctx.drafts` with the very batch, and return True only if each one gave
    PRE_REPLAY; or return False, which costs overlap and nothing else.
    """
    for case in _cases(subject):
        load = partial(_load, subject, case)
        late, _ = look(load, is_prefill, subject.cls)
        failure = told(load, is_prefill, late)
        if failure is not None:
            declared = "no shared read after stage has returned True"
            where = failure.where or _stage(subject)
            raise Refuted(attrs.evolve(failure, declared=declared, where=where, cell=str(case)))


def _load(subject: Subject, case: Case, log: DraftLog) -> Workload:
    return staged_workload(subject, case, log)


@check("stager", needs=("stager.costs_overlap_only",), devices=("host",))
def order(subject: Subject) -> None:
    """No event is recorded while it stages, on any stream: the core records that of the step when
    all is staged.

    An event that was recorded before everything was staged let the next write go on in the middle
    of it. Nothing but the order of those three lines kept an engine's tests from seeing that
    (SGLang #37988).

    Copy on the stream that you are called on, and record no event.
    """
    for case in _cases(subject):
        log = StageLog()
        load = staged_workload(subject, case, stages=log)
        with (
            quiet_torch(),
            load.engine() as engine,
            Insides(engine).device.watched_by(log),
        ):
            load.serve(engine)
        if log.recorded_within:
            what = f"{log.recorded_within[0]} is recorded while it stages"
            raise Refuted(
                Failure("no record before all is staged", what, _stage(subject), cell=str(case))
            )


@check(
    "stager",
    needs=("stager.true_is_true",),
    after=("stager.costs_overlap_only",),
    devices=("host",),
)
def nothing_outlives(subject: Subject) -> None:
    """What was staged for one batch serves no other one, and no batch is kept: the drafts are the
    same as without a stager.

    Rows and lengths that were kept for the next pass, and not renewed, gave a draft the pages of
    whoever had them before; it proposed nonsense, and only its acceptance fell (SGLang #28034).

    Fill your buffers in each call, and keep no reference to a batch or to its tensors.
    """
    for case in _cases(subject):
        log, with_it, without = StageLog(), DraftLog(), DraftLog()
        load = staged_workload(subject, case, with_it, log)
        with quiet_torch(), load.engine() as engine:
            load.serve(engine)
            gc.collect()
            alive = sum(batch() is not None for batch in log.batches)
        if alive:
            what = f"{alive} of {len(log.batches)} batches are still held once all is over"
            raise Refuted(Failure("no batch is kept", what, _stage(subject), cell=str(case)))
        staged_workload(None, case, without).run()
        if not with_it.equals(without):
            what = "the drafts are others than without the stager"
            declared = "each batch has what was staged for it"
            raise Refuted(Failure(declared, what, _stage(subject), cell=str(case)))


@check("stager", needs=("stager.true_is_true", "stager.nothing_outlives"), devices=("host",))
def races(subject: Subject) -> None:
    """Every access of a stager is ordered with those of the engine by its stream.

    Preparations that were moved to a stream of their own, to hide them, read what a forward had not
    finished, or overwrote what a draft still read (SGLang #28034, #37980).

    Do it on the stream that you are called on; bring host values with `ctx.stage`.
    """
    loads = ((str(case), staged_workload(subject, case)) for case in _cases(subject))
    refuse_races(loads, "accesses that the forward stream orders", _stage(subject))


@check(
    "stager",
    level="SHOULD",
    needs=("stager.true_is_true",),
    after=("stager.costs_overlap_only",),
    devices=("host",),
)
def could_be_earlier(subject: Subject) -> None:
    """It says True where every draft can be staged.

    A stager that always declines is right and of no use: each prefill step waits for the whole
    forward, as the steps of a draft that never published did in SGLang (#36752).

    Let `runner.stage(batch)` tell what remains, and pass that on; or name the check in
    `known_failures`, with the reason why it declines.
    """
    for case in _cases(subject):
        log = StageLog()
        staged_workload(subject, case, stages=log).run()
        if case.can_be_staged and log.answers and True not in log.answers:
            what = f"it declined all of {len(log.answers)} batches, which can be staged"
            raise Refuted(Failure("a stager that stages", what, _stage(subject), cell=str(case)))
