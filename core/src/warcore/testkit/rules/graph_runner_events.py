"""What a graph runner must keep to: the one event of a step, and whole engines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.errors import WarcoreError
from warcore.fence import FenceReason
from warcore.testkit.detectors.used import note
from warcore.testkit.engines.answers import refuse_other_answers
from warcore.testkit.engines.engineraces import races_of, refuse_race
from warcore.testkit.engines.workload import Workload, with_options
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import with_context
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cell import BUCKETS
from warcore.testkit.stands.paged import paged
from warcore.testkit.stands.runnerstand import SHAPE, batch_of, captured, runner_stand
from warcore.testkit.stands.steplog import StepLog
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

ORDERS: dict[tuple[SharedReadEnds, bool], tuple[str, ...]] = {
    (SharedReadEnds.PRE_REPLAY, True): ("out_graph", "record", "offer", "replay"),
    (SharedReadEnds.PRE_REPLAY, False): ("out_graph", "record", "offer", "replay"),
    (SharedReadEnds.IN_REPLAY, True): ("out_graph", "rearm", "offer", "replay"),
    (SharedReadEnds.IN_REPLAY, False): ("out_graph", "replay", "record", "offer"),
    (SharedReadEnds.POST_REPLAY, True): ("out_graph", "replay", "record", "offer"),
    (SharedReadEnds.POST_REPLAY, False): ("out_graph", "replay", "record", "offer"),
    (SharedReadEnds.UNKNOWN, True): ("out_graph", "offer_none", "replay"),
    (SharedReadEnds.UNKNOWN, False): ("out_graph", "offer_none", "replay"),
}
"""What happens in a replayed step, in order, for each latest vote, with a marker or without."""
SEEDS = 3
EQUAL = ("graph_runner.replays_equal_eager",)
FINE = (SharedReadEnds.PRE_REPLAY, SharedReadEnds.IN_REPLAY, SharedReadEnds.POST_REPLAY)


@check("graph_runner", needs=EQUAL, devices=("host",))
def order(subject: Subject) -> None:
    """Nothing but the core re-arms, records and offers, each once a step and in its order.

    A runner of SGLang that published for itself did so before the replay had read (#37936), and
    another recorded an event again before it had been waited for (#30435).

    Leave the marker alone but for handing it to `ctx.step`; make, record and re-arm no event.
    """
    for vote in SharedReadEnds:
        with quiet_torch(), runner_stand(subject, vote) as stand:
            _refuse_disorder(subject, stand, vote)


def _refuse_disorder(subject: Subject, stand: Stand, vote: SharedReadEnds) -> None:
    for mode in captured(subject):
        cell = f"{vote.name}-{mode.value}"
        if not subject.wants(cell):
            continue
        batch = batch_of(stand, mode, 2)
        owed = ORDERS[vote, stand.marked(batch)]
        for _ in range(2):
            log = StepLog()
            log.watch(stand, batch)
            if "replay" in log.entries and tuple(log.entries) != owed:
                declared = ", ".join(owed)
                what = f"a step goes {', '.join(log.entries)}"
                raise Refuted(_misplaced(f"a step that goes {declared}", what, cell))


@check("graph_runner", needs=EQUAL)
def marker(subject: Subject) -> None:
    """The marker of a capture fires in each replay, behind the in-graph metadata, before the body.

    SGLang fenced graphs of its drafts at their front, although their metadata still read (#37936,
    #31270); under load a row of the table changed in the middle of it.

    Hand `ctx.marker` to `ctx.step` within the capture, once, and return it from `marker(bucket)`;
    or return None there, and such reads are fenced at the end of the replay.
    """
    with quiet_torch(), runner_stand(subject, SharedReadEnds.IN_REPLAY) as stand:
        for mode in captured(subject):
            for step in range(3):
                cell = f"{mode.value}-{step}"
                if not subject.wants(cell):
                    continue
                batch = batch_of(stand, mode, 2)
                replays = stand.replays
                quiet, fence = stand.run(batch)
                if stand.replays == replays or fence.reason is not FenceReason.FINE:
                    raise NotApplicable(f"{cell} is not replayed")
                _not_early(stand, batch, quiet, cell)
                if stand.marked(batch):
                    _not_late(stand, batch, quiet, cell)


def _not_early(stand: Stand, batch: ForwardBatch, quiet: torch.Tensor, cell: str) -> None:
    note("event position")
    ends: list[int] = []

    def end() -> None:
        ends.append(1)
        stand.tables.write(torch.zeros_like(stand.tables.slots))

    output, _ = stand.run(batch, end)
    stand.tables.write(stand.tables.slots)
    if len(ends) != 1:
        what = f"a replay passes the end of the reads {len(ends)} times"
        raise Refuted(_misplaced("a marker that each replay passes once", what, cell))
    if not torch.equal(output, quiet):
        what = "the in-graph metadata read what was overwritten at the marker: it fires too early"
        raise Refuted(Failure("a marker behind the metadata", what, seen_by=("poison",), cell=cell))


def _not_late(stand: Stand, batch: ForwardBatch, quiet: torch.Tensor, cell: str) -> None:
    backend: Any = stand.backend
    slots = backend.slots(batch)
    output, _ = stand.run(batch, partial(slots.zero_))
    if torch.equal(output, quiet):
        what = "the layers had run when the marker fired: it fires too late to be worth anything"
        raise Refuted(_misplaced("a marker before the body", what, cell))


@check("graph_runner", needs=EQUAL)
def without_a_marker(subject: Subject) -> None:
    """Where the device has no external event, `ctx.marker` is None: the runner captures all the
    same, has no marker, and a read in the replay is fenced at its end.

    Where SGLang had no event inside the graph, that of a draft lay in front of the replay (#31270),
    although the graph's metadata still read the page table.

    Hand `ctx.marker` on as it is, None too, and return it from `marker(bucket)`.
    """
    with quiet_torch(), _markerless_stand(subject) as stand:
        for mode in captured(subject):
            for size in range(1, BUCKETS[-1] + 1):
                cell = f"{mode.value}-{size}"
                if subject.wants(cell):
                    batch = batch_of(stand, mode, size)
                    if stand.marked(batch):
                        what = "it hands over a marker where the device has none"
                        raise Refuted(_misplaced("no marker without ctx.marker", what, cell))
                    _refuse_early_end(stand, batch, SharedReadEnds.POST_REPLAY, cell)


def _markerless_stand(subject: Subject) -> Stand:
    """The runner on a device without external events. Refuted if it cannot do without."""
    try:
        return runner_stand(
            subject, SharedReadEnds.IN_REPLAY, runner=with_context(subject.cls, marker=None)
        )
    except WarcoreError as error:
        declared = "captures where ctx.marker is None"
        raise Refuted(Failure(declared, error.what)) from error


@check("graph_runner", needs=("graph_runner.order", "graph_runner.marker"))
def fences(subject: Subject) -> None:
    """The fence of a replayed step falls where the latest vote says, for each vote and each size.

    A kernel inside a graph of SGLang read the live tables again in each replay, and the event of
    the step lay in front of it (#31686): eager steps of the same backend were fenced as they should
    be.

    Replay a captured step once, on the current stream, in one go, whatever its size.
    """
    for vote in FINE:
        with quiet_torch(), runner_stand(subject, vote) as stand:
            for mode in captured(subject):
                for size in range(1, BUCKETS[-1] + 2):
                    cell = f"{vote.name}-{mode.value}-{size}"
                    if subject.wants(cell):
                        _refuse_early_end(stand, batch_of(stand, mode, size), vote, cell)


def _refuse_early_end(stand: Stand, batch: ForwardBatch, end: SharedReadEnds, cell: str) -> None:
    quiet, _ = stand.run(batch)
    output, fence = stand.run_overwritten(batch, torch.zeros_like(stand.tables.slots))
    if fence.reason is not FenceReason.FINE or not torch.equal(output, quiet):
        what = f"the fence fell too early, or not at all ({fence.reason.value})"
        raise Refuted(Failure(f"reads end at {end.name}", what, seen_by=("poison",), cell=cell))


def _misplaced(promised: str, what: str, cell: str) -> Failure:
    return Failure(promised, what, seen_by=("event position",), cell=cell)


# ---- whole engines -------------------------------------------------------------------------------


@check(
    "graph_runner",
    needs=(
        "graph_runner.fences",
        "graph_runner.smaller_after_larger",
        "graph_runner.unequal_lengths",
    ),
    devices=("host",),
)
def in_an_engine(subject: Subject) -> None:
    """A whole engine answers with the runner as it does without, in every schedule, without a race.

    Inputs that a break in a graph held weakly were given to later buckets in SGLang (#37606,
    #37448): outputs were right step by step, and wrong once requests came, went and changed places.

    Keep nothing of one step for the next, and no work on a stream of your own.
    """
    eager, replayed = _workloads(subject)
    owed = eager.run()
    if subject.wants("races"):
        with quiet_torch():
            found = races_of(replayed)
        declared = "accesses that a stream or an event orders, whoever runs first"
        refuse_race(found, declared, "races", where="")
    for host in ("inline", *(f"seeded:{seed}" for seed in range(SEEDS))):
        if subject.wants(host):
            served = replayed.run(host)
            if not served.replays:
                why = "it replays no step of an engine: it captures neither DECODE nor EXTEND"
                raise NotApplicable(why)
            failure = Failure("the answers of an engine without graphs", "", cell=host)
            refuse_other_answers(replayed, served, owed, failure)


def _workloads(subject: Subject) -> tuple[Workload, Workload]:
    """Without graphs, and with the runner: in float64, where padding sways no choice of a token."""
    shape, backend = attrs.evolve(SHAPE, dtype="float64"), paged(SharedReadEnds.IN_REPLAY)
    runner = with_options(subject.cls, subject.options)
    prefills = [6] if ForwardMode.EXTEND in subject.cls.modes else None
    graphs = {"graph_prefill_buckets": prefills}
    return Workload(shape, backend), Workload(shape, backend, runner, more=graphs)
