"""What a backend may write, whose memory may show in its output, and words that could be better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.device import Observer
from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.elements import same
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.packages.definitions import definition
from warcore.testkit.runs.check import check
from warcore.testkit.stands.culprits import unnamed, watched
from warcore.testkit.stands.late import page_guard, told
from warcore.testkit.stands.snapshots import has_snapshot
from warcore.testkit.stands.walk import cells_of, stands

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.device import Stream
    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.detectors.window import Window
    from warcore.testkit.stands.cell import Cell
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject


@check("backend", needs=("backend.votes",), after=("backend.captures",), devices=("host",))
def never_writes(subject: Subject) -> None:
    """A step writes nothing to the shared tables, at any point of it.

    A kernel that normalised a page table in place raced with the scheduler, and each was right when
    it was tested alone.

    Write into memory from `ctx.static`; the tables belong to the scheduler.
    """
    with page_guard() as guard:
        for stand in stands(subject, guard=guard):
            window = guard.window("forward", writes_only=True)
            for cell in cells_of(subject, stand):
                for batch in stand.steps(cell):
                    with window:
                        stand.run(batch)
                    written = [f for f in guard.faults if f.kind == "write"]
                    if written:
                        raise Refuted(_written(stand, batch, written[0], str(cell)))


def _written(stand: Stand, batch: ForwardBatch, fault: Fault, cell: str) -> Failure:
    """The step once more under attribution, which names operation and line."""
    attribution = Attribution(stand.tables.named)
    watched(stand, batch, attribution)
    for access in attribution.accesses:
        if access.kind == "write":
            what = told(stand, access, "read", "written", fault.code)
            seen_by, where = ("guard", "attribution"), str(access.place or "")
            return Failure("tables that are only read", what, where, seen_by, cell)
    what = told(stand, unnamed(fault), "read", "written")
    return Failure("tables that are only read", what, "", ("guard",), cell)


@check("backend", needs=("backend.votes",), after=("backend.parity",))
def padding(subject: Subject) -> None:
    """What lies in the padding slot, and in slots of nobody in the batch, shows in no live output.

    Weight 0 times the NaN of a slot that nobody owned was NaN, and one request's answer turned into
    exclamation marks when its neighbour left.

    Let padding and masked positions load a slot of the request's own; a mask alone is not enough.
    """
    for stand in stands(subject):
        for cell in cells_of(subject, stand):
            for batch in stand.steps(cell):
                quiet, _ = stand.run(batch)
                _poison(stand, batch)
                output, _ = stand.run(batch)
                if not same(quiet, output):
                    what = "the output changes with what lies in slots of nobody in the batch"
                    raise Refuted(Failure("its own slots only", what, "", ("poison",), str(cell)))


def _poison(stand: Stand, batch: ForwardBatch) -> None:
    """NaN in every slot that no request of the batch owns; restored by the next preparation."""
    for number, layer in enumerate(stand.kv):
        owned = torch.zeros(int(stand.tables.slots.max()) + 1, dtype=torch.bool)
        owned[stand.tables.slots_in(number)[batch.rows.cpu()].flatten()] = True
        for memory in layer.values():
            page = stand.shape.page_size
            free = [i for i in range(memory.shape[0]) if not owned[i * page : (i + 1) * page].any()]
            memory[free] = float("nan")


@check("backend", level="SHOULD", needs=("backend.no_late_access",), devices=("host",))
def could_be_earlier(subject: Subject) -> None:
    """No earlier end would be true than the one that is declared.

    A backend that copied its rows before the graph declared the end of the step out of caution; its
    fence was as late as a coarse one, and nobody knew what that cost.

    Declare the earlier end: the kit has just seen that nothing is read after it.
    """
    with page_guard() as guard:
        late: dict[ForwardMode, SharedReadEnds] = {}
        still: set[ForwardMode] = set()
        cell_of: dict[ForwardMode, Cell] = {}
        for stand in stands(subject, guard=guard, graphs=(GraphKind.NONE,)):
            window = guard.window("forward")
            for cell in cells_of(subject, stand):
                ends = stand.scope.ends[cell.mode]
                if cell.mode is ForwardMode.MIXED or ends is SharedReadEnds.PRE_REPLAY:
                    continue
                if cell.mode is ForwardMode.EXTEND and has_snapshot(subject.cls):
                    continue  # its static vote says nothing of where the reads of a batch end
                late[cell.mode], cell_of[cell.mode] = ends, cell
                phase = "in_graph" if ends is SharedReadEnds.IN_REPLAY else "body"
                for batch in stand.steps(cell):
                    if _touched(stand, batch, window, phase):
                        still.add(cell.mode)
        if not late:
            raise NotApplicable("every end that it declares is the earliest")
        for mode in (each for each in late if each not in still):
            earlier = "PRE_REPLAY" if late[mode] is SharedReadEnds.IN_REPLAY else "IN_REPLAY"
            what = f"nothing is read later than {earlier} in any {mode.value} step"
            claim = f"{late[mode].name} for {mode.value} steps"
            where = definition(subject.cls, "shared_read_ends")
            raise Refuted(Failure(claim, what, where, ("guard",), str(cell_of[mode])))


def _touched(stand: Stand, batch: ForwardBatch, window: Window, phase: str) -> bool:
    """Whether anything is touched from the beginning of `phase` on."""
    try:
        with stand.watched_by(_Closing(window, phase)):
            stand.run(batch)
    finally:
        faults = window.open()
    return bool(faults)


class _Closing(Observer):
    """Closes a window when a phase begins."""

    def __init__(self, window: Window, phase: str) -> None:
        self._window, self._phase = window, phase

    def phase(self, stream: Stream | None, name: str) -> None:  # noqa: ARG002
        if name == self._phase:
            self._window.close()
