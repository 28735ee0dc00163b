"""What a backend must keep to in a whole engine: order, in every schedule, and one event a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.testkit.engines.answers import refuse_other_schedules
from warcore.testkit.engines.engineraces import refuse_races
from warcore.testkit.engines.workload import MANY, ROOM, Workload, with_options
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cell import cell_of, shapes
from warcore.testkit.stands.gates import (
    LAYERS,
    LAYERS_END,
    METADATA_IN,
    METADATA_OUT,
    REPLAY,
    Gates,
)
from warcore.testkit.stands.recorders import Recording, RecordingSegments
from warcore.testkit.stands.stand import Stand
from warcore.testkit.stands.walk import declared, quiet_torch, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.stands.cell import Cell, Shape
    from warcore.testkit.subject import Subject

RUNNERS = {
    GraphKind.NONE: "none",
    GraphKind.UNBROKEN: Recording,
    GraphKind.BREAKABLE: RecordingSegments,
}
SEEDS, THOROUGH_SEEDS = 10, 100
POSITIONS = ((40,), (1, 3), (3, 4, 5), (40, 1, 3, 4, 5))
"""Prefixes of the batches whose events are looked at: in a bucket, at its edge, beyond all."""


@check(
    "backend",
    needs=("backend.votes",),
    after=("backend.no_late_access", "backend.overwritten"),
    devices=("host",),
)
def races(subject: Subject) -> None:
    """In a whole engine every two accesses of which one is a write are ordered by stream or event.

    An attention plan that was made on a stream of its own read inputs which the forward had not
    written yet (SGLang #28034), and host memory was filled again while the copy of the step before
    still read it (vLLM #24527): both gave wrong tokens or a fault under load only.

    Let the forward stream do the work, or wait for it there; bring host values with `ctx.stage`. A
    step that reads a table while the scheduler writes it reads behind the declared end: copy what
    the layers need before it, or declare the later end.
    """
    loads = [(kind.value, load) for kind, load in _engines(subject)]
    # Without graphs: what so many requests ask for differs in the backend, not in the replay.
    loads.append(("many", attrs.evolve(loads[0][1], requests=MANY, more=ROOM)))
    wanted = ((cell, load) for cell, load in loads if subject.wants(cell))
    refuse_races(wanted, "accesses that a stream or an event orders, whoever runs first")


@check(
    "backend",
    needs=("backend.votes",),
    after=("backend.no_late_access", "backend.races", "backend.padding", "backend.rows"),
    devices=("host",),
)
def schedules(subject: Subject) -> None:
    """A whole engine gives the answers of its serial run, whichever stream goes on at each point.

    A verify step of SGLang indexed out of range an iteration after it had become right to go on
    early (#35059): a wait for the whole forward had hidden that another stream read what was still
    being written. A run that was slowed down on purpose showed it each time.

    Let nothing depend on how far another stream has come: no question whether an event is done, no
    Python state that work of two streams shares.
    """
    seeds = range(THOROUGH_SEEDS if subject.thorough else SEEDS)
    for kind, load in _engines(subject):
        if kind is not GraphKind.BREAKABLE or subject.thorough:
            refuse_other_schedules(subject, load, kind.value, seeds)


@check("backend", needs=("backend.votes", "backend.captures"), devices=("host",))
def event_position(subject: Subject) -> None:
    """A step has one read-done event, done where the backend declares its reads to end: not while
    a gate before that point is shut, and as soon as one behind it is reached.

    A graph that still read the page table had its event in front of the replay in SGLang (#37936):
    the kernel gathered rows that the next step had rewritten, out of bounds in the worst case.

    Leave the event to the core, in each step; an event of your own orders streams of your own only:
    record it on one of them, or let one of them wait for it.
    """
    shape, told = _shape(subject), False
    for kind in GraphKind:
        gates = Gates(subject.cls)
        with quiet_torch(), _gated_stand(subject, shape, kind, gates) as stand:
            for cell in _positions(shape, kind):
                if subject.wants(cell):
                    stand.prepare(cell)
                    told = _in_position(stand, cell, gates) or told
    if not told and not subject.cells:
        raise NotApplicable("it declares no end in any mode: every step is coarse")


def _gated_stand(subject: Subject, shape: Shape, kind: GraphKind, gates: Gates) -> Stand:
    return Stand(gates.gated, shape, kind, options=subject.options)


def _positions(shape: Shape, kind: GraphKind) -> Iterator[Cell]:
    for mode in ForwardMode:
        if kind is GraphKind.NONE or mode is not ForwardMode.MIXED:
            for prefixes in POSITIONS:
                yield cell_of(shape, mode, kind, prefixes)


def _in_position(stand: Stand, cell: Cell, gates: Gates) -> bool:
    """Whether there was an event, in each of two steps where it has to be. Refuted if elsewhere."""
    told = False
    for batch in stand.steps(cell):
        gates.watch(stand, batch)
        if gates.foreign:
            record = gates.foreign[0]
            what = (
                f"a step records {record.ticket.event!r} of its own on stream {record.stream.name}"
            )
            where = str(record.place or "")
            raise Refuted(_misplaced("a step that leaves events to the core", what, cell, where))
        after, before = _between(stand, cell, marked=stand.marked(batch), passed=gates.passed)
        at = gates.done_before
        told = told or at is not None
        if after is None:
            wrong = None if at is None else "the event is done in a step that has none"
        elif at is None:
            # A snapshot may have answered otherwise.
            wrong = None if cell.mode.is_prefill else "the event is never done"
        elif after not in gates.passed[:at]:
            wrong = f"the event is done before {after}: too early"
        elif before is not None and before in gates.passed[:at]:
            wrong = f"the event is not done at {before}: too late"
        else:
            wrong = None
        if wrong is not None:
            raise Refuted(_misplaced(declared(stand, cell), wrong, cell))
    return told


def _misplaced(promised: str, what: str, cell: Cell, where: str = "") -> Failure:
    return Failure(promised, what, where, ("event position",), str(cell))


def _between(
    stand: Stand, cell: Cell, *, marked: bool, passed: list[str]
) -> tuple[str | None, str | None]:
    """Behind which gate the event has to be done and, unless it is the last one, before which."""
    end = stand.scope.ends[cell.mode]
    replayed = REPLAY in passed
    if cell.mode is ForwardMode.MIXED or end is SharedReadEnds.UNKNOWN:
        has_snapshot = cell.mode is ForwardMode.EXTEND
        return (METADATA_OUT, REPLAY if replayed else METADATA_IN) if has_snapshot else (None, None)
    if cell.mode.is_prefill or end is SharedReadEnds.PRE_REPLAY:
        return METADATA_OUT, REPLAY if replayed else METADATA_IN
    if end is SharedReadEnds.IN_REPLAY and (marked or not replayed):
        return METADATA_IN, LAYERS
    return LAYERS_END, None


# ---- the engines ---------------------------------------------------------------------------------


def _engines(subject: Subject) -> Iterator[tuple[GraphKind, Workload]]:
    shape, cls = _shape(subject), with_options(subject.cls, subject.options)
    for kind in GraphKind:
        yield kind, Workload(shape, cls, RUNNERS[kind])


def _shape(subject: Subject) -> Shape:
    """The first shape that it serves. NotApplicable, with its reasons, if there is none."""
    reasons: dict[str, None] = {}
    for shape in shapes(subject.cls.page_sizes, thorough=subject.thorough):
        why = [] if shape.tree else why_not(subject, shape)
        if not why and not shape.tree:
            return shape
        reasons |= dict.fromkeys(why)
    raise NotApplicable(f"it serves no engine of the kit's: {'; '.join(reasons)}")
