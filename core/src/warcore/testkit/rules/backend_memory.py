"""What a backend may write, whose memory may show in its output, and words that could be better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import torch

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.device import Observer
from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.elements import same
from warcore.testkit.outcome import Elsewhere, Failure, NotApplicable, Refuted
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

    Rows of a running request that were rewritten under it sent its pages to slot 0 in SGLang
    (#29352); each writer was right when it was tested alone, and people saw spikes of a metric.

    Write into memory from `ctx.static`, or into a copy of the rows; the tables belong to the
    scheduler.
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

    Weight 0 times the NaN of a slot that nobody had written was NaN in vLLM (#641), and again in
    FlashAttention 3 (flash-attention #1745): an answer was lost to what lay beside it.

    Let padding and masked positions load a slot of the request's own, or put zeros in place of what
    they loaded (`torch.where`); a mask of the scores alone is not enough.
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
    """NaN in every slot that no request of the batch owns.

    It stays: whoever owns a slot later writes it before it is read, and nobody owns page 0.
    """
    for number, layer in enumerate(stand.kv):
        owned = torch.zeros(int(stand.tables.slots.max()) + 1, dtype=torch.bool)
        owned[stand.tables.slots_in(number)[batch.rows.cpu()].flatten()] = True
        for memory in layer.values():
            page = stand.shape.page_size
            free = [i for i in range(memory.shape[0]) if not owned[i * page : (i + 1) * page].any()]
            memory[free] = float("nan")


@check(
    "backend",
    level="SHOULD",
    needs=("backend.votes",),
    after=("backend.no_late_access",),
    devices=("host",),
)
def could_be_earlier(subject: Subject) -> None:
    """No earlier end would be true than the one that is declared.

    A draft of several layers never published its event in SGLang (#36752): its answers were right,
    each of its steps was as late as with a coarse fence, and nobody knew what that cost.

    Declare the earlier end: the kit has just seen that nothing is read after it. Or name the check
    in `known_failures`, with the reason why it stays.
    """
    slacks = _slacks(subject)
    if not slacks:
        raise NotApplicable("every end that it declares is the earliest")
    found = [slack for slack in slacks if slack.open]
    if found:
        where = definition(subject.cls, "shared_read_ends")
        first, *others = (slack.failure(where) for slack in found)
        rest = tuple(
            Elsewhere(each.declared, each.observed, where, each.seen_by, each.cells)
            for each in others
        )
        raise Refuted(attrs.evolve(first, elsewhere=rest))


@attrs.define
class _Slack:
    """What lies between an end that is declared for a mode and the earlier ones."""

    mode: ForwardMode
    ends: SharedReadEnds
    cell: Cell
    """The first that was walked."""
    open: list[SharedReadEnds]
    """The earlier ends behind which nothing was read yet, earliest first."""

    def failure(self, where: str) -> Failure:
        earliest = self.open[0]
        if self.mode is ForwardMode.EXTEND:
            lost = "the whole prefill"
        elif earliest is SharedReadEnds.IN_REPLAY:
            lost = "the layers"
        elif self.ends is SharedReadEnds.IN_REPLAY:
            lost = "the in-graph metadata"
        else:
            lost = "the in-graph metadata and the layers"
        claim = f"{self.ends.name} for {self.mode.value} steps"
        what = f"nothing is read later than {earliest.name} in any {self.mode.value} step"
        what = f"{what}: the tables of the next step wait for {lost} in vain"
        return Failure(claim, what, where, ("guard",), str(self.cell), cells=(str(self.cell),))


_BEHIND: Final = {SharedReadEnds.PRE_REPLAY: "in_graph", SharedReadEnds.IN_REPLAY: "body"}
"""The phase that begins where reads end."""


def _slacks(subject: Subject) -> list[_Slack]:
    """One for each end that is declared for a mode and has an earlier one."""
    slacks: dict[tuple[ForwardMode, SharedReadEnds], _Slack] = {}
    with page_guard() as guard:
        for stand in stands(subject, guard=guard, graphs=(GraphKind.NONE,)):
            window = guard.window("forward")
            for cell in cells_of(subject, stand):
                ends = stand.scope.ends[cell.mode]
                earlier = _earlier(subject, cell.mode, ends)
                if not earlier:
                    continue
                slack = slacks.setdefault((cell.mode, ends), _Slack(cell.mode, ends, cell, earlier))
                for batch in stand.steps(cell) if slack.open else ():
                    while slack.open and _touched(stand, batch, window, _BEHIND[slack.open[0]]):
                        slack.open.pop(0)
    return list(slacks.values())


def _earlier(subject: Subject, mode: ForwardMode, ends: SharedReadEnds) -> list[SharedReadEnds]:
    """The ends before `ends` that would make the fence of a step earlier."""
    if mode is ForwardMode.MIXED:
        return []
    if mode is not ForwardMode.EXTEND:
        return [each for each in _BEHIND if each < ends]
    # With a snapshot the static vote says nothing of where the reads of a batch end.
    fine = SharedReadEnds.PRE_REPLAY
    return [fine] if ends is not fine and not has_snapshot(subject.cls) else []


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
