"""What a backend must keep to that says per batch where the reads of a prefill end."""

from __future__ import annotations

from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from warcore.contract import SharedReadEnds
from warcore.fence import FenceReason
from warcore.testkit.detectors.guard import PageGuard, supported
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import definition, judged
from warcore.testkit.runs.check import check
from warcore.testkit.runs.lines import by_line
from warcore.testkit.stands.culprits import Culprits
from warcore.testkit.stands.late import changed_by, late_access
from warcore.testkit.stands.owing import compare
from warcore.testkit.stands.snapshots import (
    HOOK,
    Asked,
    Breaking,
    claimed_stands,
    has_snapshot,
    prefill_stands,
    prefills,
    unasked,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warcore.batch import ForwardBatch
    from warcore.fence import ReadFence
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject


def _applies(subject: Subject) -> None:
    if not has_snapshot(subject.cls):
        raise NotApplicable("it has no snapshot: its static votes hold for every prefill")


@check("backend", needs=("backend.votes",), after=("backend.captures",))
def snapshot_answers(subject: Subject) -> None:
    """The snapshot hook answers every prefill with None or a SharedReadEnds, padded ones too.

    A draft of several layers never told an end in SGLang (#36752): every step of it waited for the
    whole forward, and nobody was told.

    Return a SharedReadEnds or None; `num_qo_tokens` is the bucket's where a graph will replay. Or
    leave the hook out: the static vote holds then.
    """
    _applies(subject)
    asked = Asked()
    answers: list[Any] = []
    for stand in prefill_stands(subject, asked.watching(subject.cls)):
        for cell, batch in prefills(subject, stand):
            asked.told.clear()
            _, fence = stand.run(batch)
            if cell:
                _judge_answer(subject, asked, fence.reason, fence.detail, cell)
                answers += [answer for *_, answer in asked.told]
    if not subject.cells and not any(answer is not None for answer in answers):
        raise NotApplicable("it answers None to every batch: its static votes hold")


def _judge_answer(
    subject: Subject, asked: Asked, reason: FenceReason | None, detail: str, cell: str
) -> None:
    what = ""
    if reason is FenceReason.SNAPSHOT_ERROR:
        what = detail
    for tokens, given, answer in asked.told:
        if answer is not None and not isinstance(answer, SharedReadEnds):
            what = f"it answered {answer!r} for {tokens} tokens, {given} with padding"
    if what:
        where = definition(subject.cls, HOOK)
        raise Refuted(Failure("None or a SharedReadEnds for each batch", what, where, cell=cell))


@check("backend", needs=("backend.votes",), after=("backend.snapshot_answers",))
def snapshot_may_be_missing(subject: Subject) -> None:
    """A prefill is right, too, if nobody calls the snapshot hook.

    SGLang was given a switch that forces the coarse fence, to find another fault with it (#29353).
    Hooks like this one are not called then, and what only they do is missing.

    Let the layers build what the hook has not built; the hook only builds it sooner.
    """
    _applies(subject)
    for stand in prefill_stands(subject, unasked(subject.cls)):
        for cell, batch in prefills(subject, stand):
            _run(subject, stand, batch, cell, "without its hook ")


def _run(subject: Subject, stand: Stand, batch: ForwardBatch, cell: str, when: str) -> ReadFence:
    """Its fence. Refuted unless the prefill runs and, if it is of a cell, its output is right."""
    with judged(subject.cls, "right prefills", cell, when):
        output, fence = stand.run(batch)
    if cell:
        compare(stand, batch, output, cell, when)
    return fence


@check("backend", needs=("backend.votes",), after=("backend.snapshot_may_be_missing",))
def snapshot_is_of_its_batch(subject: Subject) -> None:
    """What the snapshot of a batch holds serves that batch, and no later one.

    A cache that was keyed by a buffer's address served the step after with the translations of the
    one before (SGLang #27091, #27617); each step on its own was right.

    Build anew in each call, or key by the batch; and let go when the step is over.
    """
    _applies(subject)
    for stand in prefill_stands(subject, subject.cls):
        for cell, batch in prefills(subject, stand):
            output, _ = stand.run(batch)
            if cell:
                compare(stand, batch, output, cell, "after the snapshot of another batch ")


@check("backend", needs=("backend.votes",), after=("backend.snapshot_is_of_its_batch",))
def snapshot_may_fail(subject: Subject) -> None:
    """If the snapshot hook raises, at whatever point, the step is coarse and right, and the next is
    right too.

    A hook of SGLang raised in the middle, on an attribute that one way of construction had not set
    (after #35947). A late fence is no harm; half a table that the layers take for a whole one is.

    Set what says "built" after all is built, in one assignment; the hook's answer is a value.
    """
    _applies(subject)
    breaking = Breaking()
    cls = breaking.within(subject.cls)
    work: list[list[int]] = []
    for stand in prefill_stands(subject, cls):
        work.append([])
        for _, batch in prefills(subject, stand):
            stand.run(batch)
            work[-1].append(breaking.operations)
    for part, failing in product((0.0, 0.5, 1.0), (0, 1)):
        for stand, operations in zip(prefill_stands(subject, cls), work, strict=True):
            plan = [
                (int(part * count) if nth % 2 == failing else None, part == 1)
                for nth, count in enumerate(operations)
            ]
            _broken(subject, stand, breaking, plan)


def _broken(
    subject: Subject, stand: Stand, breaking: Breaking, plan: list[tuple[int | None, bool]]
) -> None:
    """Prefills whose hooks raise as `plan` says: (after how many operations, when all is done)."""
    for (allowed, at_end), (cell, batch) in zip(plan, prefills(subject, stand), strict=True):
        breaking.allowed, breaking.at_end = allowed, at_end and allowed is not None
        when = "in the step after one whose hook raised "
        if allowed is not None:
            when = "after its hook raised "
        breaking.raised = False
        fence = _run(subject, stand, batch, cell, when)
        if cell and breaking.raised and fence.reason is FenceReason.FINE:
            what = "after its hook raised the fence is fine: nobody knows where its reads end"
            where = definition(subject.cls, HOOK)
            raise Refuted(Failure("a coarse step where the hook raised", what, where, cell=cell))
    breaking.allowed, breaking.at_end = None, False


@check("backend", needs=("backend.votes",), after=("backend.snapshot_may_fail",))
def snapshot_is_true(subject: Subject) -> None:
    """After the end that the snapshot hook tells for a batch, nothing of the tables is touched.

    A draft's graph of SGLang gathered again what its declaration said had been taken before
    (#36335); pages were wrong, and there was no error.

    Copy in the hook what the layers would read, in every branch, before you answer PRE_REPLAY; or
    answer None for such a batch, and its static vote holds.
    """
    _applies(subject)
    asked = Asked()
    cls = asked.watching(subject.cls)
    if subject.device == "host" and supported() is None:
        claims = _refuse_late(subject, cls, asked)
        _refuse_other_output(subject, prefill_stands(subject, cls), asked)
    else:
        everywhere = chain(prefill_stands(subject, cls), claimed_stands(subject, cls))
        claims = _refuse_other_output(subject, everywhere, asked)
    if not claims:
        raise NotApplicable("it claims nothing for any of these batches: its static votes hold")


def _refuse_late(subject: Subject, cls: Any, asked: Asked) -> int:
    """How many steps had a claim; none of them touched the tables behind it."""
    claims = 0
    found: list[Failure] = []
    with PageGuard() as guard, Culprits(guard, cls) as culprits:
        for stand in chain(
            prefill_stands(subject, cls, guard), claimed_stands(subject, cls, guard)
        ):
            for cell, batch in prefills(subject, stand):
                asked.told.clear()
                if cell:
                    found += late_access(stand, batch, culprits, partial(_claim, asked), cell)
                    claims += bool(_claim(asked))
                else:
                    stand.run(batch)
    if found:
        raise Refuted(by_line(found))
    return claims


def _refuse_other_output(subject: Subject, on: Iterable[Stand], asked: Asked) -> int:
    """How many steps had a claim; the output of none of them depends on what comes behind it."""
    claims = 0
    for stand in on:
        for cell, batch in prefills(subject, stand):
            asked.told.clear()
            stand.run(batch)
            claim = _claim(asked)
            claims += bool(cell and claim)
            shows = changed_by(stand, batch) if cell and claim else None
            if shows is not None:
                what = f"the output changes when the table is overwritten after that with {shows}"
                where = definition(subject.cls, HOOK)
                raise Refuted(Failure(claim, what, where, ("poison",), cell))
    return claims


def _claim(asked: Asked) -> str:
    """What the hook has told of the last step; empty if the static vote stands."""
    answers = [answer for *_, answer in asked.told if isinstance(answer, SharedReadEnds)]
    return f"{answers[-1].name}, says its snapshot hook" if answers else ""
