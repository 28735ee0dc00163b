"""What an algorithm says of its reads of shared buffers, held against a whole engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.wrapping import Wrapping
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.laterreaders import StagesAll
from warcore.testkit.engines.latesteps import is_decode, is_prefill, look, told
from warcore.testkit.engines.specworkload import usual_and_many, workload
from warcore.testkit.outcome import Failure, NotApplicable, Refuted, Unproven
from warcore.testkit.packages.definitions import definition
from warcore.testkit.runs.check import check
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.testkit.access import Access
    from warcore.testkit.engines.latesteps import Which
    from warcore.testkit.engines.specworkload import Way
    from warcore.testkit.subject import Subject

UNPUBLISHED = frozenset({"not_published", "not_owner", "declaration_error"})
"""Reasons of steps whose last phase did not come, or was not named."""


@check(
    "spec_algo",
    needs=("spec_algo.why_not",),
    after=("spec_algo.later_prefill_reader",),
    devices=("host",),
)
def last_reader(subject: Subject) -> None:
    """No shared buffer is read after the event of a step: not after the last phase of the runner
    that `last_shared_read_runner` names, and not by the algorithm itself behind it.

    One engine recorded its event behind the target's verify while a draft model's pass still came,
    or behind the wrong one of several draft runners (SGLang #35057, #36752): page tables were
    rewritten while a phase read them.

    Name the runner whose phase reads last; vote UNKNOWN in `shared_read_ends` for
    reads of your own that come later.
    """
    _refuse_late(subject, is_decode, "steps whose shared reads are over at their event")


@check("spec_algo", needs=("spec_algo.why_not",), devices=("host",))
def later_prefill_reader(subject: Subject) -> None:
    """Once the target's prefill has published its event, nothing shared is read: with
    `later_prefill_reader = False` nothing at all, with True nothing but what its runners have read
    ahead for a stager.

    The event of a prefill is published before its layers run, and a draft model's own prefill comes
    long after that: its table may hold the rows of the next batch by then. Engines ask each
    algorithm for that reason, and one published before the replay of a draft that still gathered
    (SGLang #34916, #37988).

    Leave it True; after a prefill execute each runner once, with the batch's own rows and
    positions. For reads of your own vote UNKNOWN for EXTEND, or work out in advance where a draft's
    prefill will write.
    """
    reads = subject.cls.later_prefill_reader
    more: dict[str, Any] = {"stagers": [StagesAll]} if reads else {}
    _refuse_late(subject, is_prefill, f"later_prefill_reader = {reads}", **more)


def _refuse_late(subject: Subject, which: Which, declared: str, **more: Any) -> None:
    """more: fields of the engines' config."""
    settled = 0
    for way in filter(subject.wants, usual_and_many(subject)):
        load = partial(workload, subject, way, **more)
        late, served = look(load, which, subject.cls)
        settled += late.settled
        failure = told(load, which, late)
        if failure is not None:
            raise Refuted(attrs.evolve(failure, declared=declared, cell=str(way)))
        if not late.settled and served.error is not None:
            raise Unproven(f"{way}: no step came as far as its event: {served.error}")
    if not settled and not subject.cells:
        raise NotApplicable("no such step has an event of its own: all are coarse")


@check(
    "spec_algo",
    level="SHOULD",
    needs=("spec_algo.why_not",),
    after=("spec_algo.last_reader",),
    devices=("host",),
)
def could_be_earlier(subject: Subject) -> None:
    """No event comes later than it must: the runner that is named executes in its last phase, and
    a draft that reads nothing after prefills says so.

    An algorithm whose event was cleared out of caution waited for the whole forward in each step:
    the overlap was lost, and the race behind it only hidden (SGLang #35059).

    Name None unless the draft runner executes in `draft_extend`; declare
    `later_prefill_reader = False` where `draft_extend` reads no table after a prefill.
    """
    for way in filter(subject.wants, usual_and_many(subject)):
        read, reasons = _reads_after_prefills(subject, way)
        if reasons & UNPUBLISHED:
            what = "no event is published in steps with drafts: their fence is coarse"
            where = definition(subject.cls, "last_shared_read_runner")
            raise Refuted(Failure("steps with an event of their own", what, where, cell=str(way)))
        if subject.cls.later_prefill_reader and not read:
            what = "no table is read after any prefill"
            raise Refuted(
                Failure("later_prefill_reader = True", what, "", ("attribution",), str(way))
            )


def _reads_after_prefills(subject: Subject, way: Way) -> tuple[bool, set[str]]:
    """Whether any table is read there, and the reasons of all fences."""
    inside: list[bool] = []
    reads: list[Access] = []
    load = workload(subject, way)
    with quiet_torch(), load.engine() as engine:
        insides = Insides(engine)
        seen = Attribution(
            {"req_to_token": insides.shared.tables.req_to_token},
            lambda access: reads.append(access) if inside else None,
        )
        with Wrapping() as wrapping, insides.device.watched_by(seen):
            wrapping.wrap(insides.drafting, "after_prefill", partial(_within, inside))
            load.serve(engine)
        reasons = {each["reason"] for each in engine.stats()["fences"]}
    if seen.addresses_taken or seen.missing:
        raise Unproven("a read would be out of sight: an address of the tables was taken")
    return bool(reads), reasons


def _within(inside: list[bool], method: Callable[..., None]) -> Callable[..., None]:
    """`method`, while which `inside` has an element."""

    def wrapped(*given: Any) -> None:
        inside.append(True)
        try:
            method(*given)
        finally:
            inside.clear()

    return wrapped
