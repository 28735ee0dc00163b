"""Late accesses: what of the shared tables is touched after the declared end, and by whom."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.testkit.attribution import Attribution
from warcore.testkit.guard import PageGuard, supported
from warcore.testkit.outcome import Failure, Unproven
from warcore.testkit.walk import cells_of, declared, stands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.access import Access
    from warcore.testkit.cell import Cell
    from warcore.testkit.guard import Fault, Window
    from warcore.testkit.stand import Stand
    from warcore.testkit.subject import Subject


BASELINES = 3
"""How often a step is run before what changes its output is told from what it does by itself."""


def page_guard() -> PageGuard:
    """A guard to enter; Unproven where it cannot work."""
    why = supported()
    if why is not None:
        raise Unproven(why)
    return PageGuard()


def late_accesses(subject: Subject) -> Iterator[Failure]:
    """A failure for each cell in which something is touched too late."""
    shown = False
    with page_guard() as guard:
        for stand in stands(subject, guard=guard):
            window = guard.window("forward")
            for cell in cells_of(subject, stand):
                for batch in stand.steps(cell) if tells_an_end(stand, cell) else ():
                    claim = declared(stand, cell)
                    found = late_access(stand, batch, window, claim, str(cell), shows=not shown)
                    if found is not None:
                        shown = shown or "poison" in found.seen_by
                        yield found
                        break


def tells_an_end(stand: Stand, cell: Cell) -> bool:
    """Whether the static vote gives the steps of a cell an end: the others are coarse."""
    ends = stand.scope.ends[cell.mode]
    if cell.mode.is_prefill:
        return cell.mode is ForwardMode.EXTEND and ends is SharedReadEnds.PRE_REPLAY
    return ends is not SharedReadEnds.UNKNOWN


def late_access(
    stand: Stand,
    batch: ForwardBatch,
    window: Window,
    claim: str,
    cell: str,
    *,
    shows: bool = True,
) -> Failure | None:
    """What a step touches after the end of its reads; None: nothing.

    The page guard gives the verdict. The step is then run again: under attribution, which names
    operation and line, and, with `shows`, with other tables from that end on, which may show in
    the output.
    """
    faults = _closed(stand, batch, window)
    if not faults:
        return None
    seen_by = ["guard"]
    access = _named(stand, batch)
    where = phase = operation = ""
    if access is not None:
        seen_by.append("attribution")
        phase = f" in phase {access.phase}" if access.phase else ""
        operation, where = f": {access.operation}", str(access.place or "")
    so = ""
    with suppress(Unproven):
        pattern = changed_by(stand, batch) if shows else None
        if pattern is not None:
            seen_by.append("poison")
            so = f"; the output changes with {pattern}"
    what = f"{_told(stand, faults[0])}{operation}{phase}{so}"
    return Failure(claim, what, where, tuple(seen_by), cell)


def _closed(stand: Stand, batch: ForwardBatch, window: Window) -> list[Fault]:
    """Run a step with the readers' view closed from the declared end on."""
    try:
        stand.run(batch, window.close)
    finally:
        faults = window.open()
    return faults


def _named(stand: Stand, batch: ForwardBatch) -> Access | None:
    """The first touch after the declared end, by operation and line."""
    late: list[Access] = []
    ended: list[bool] = []

    def tell(access: Access) -> None:
        if ended:
            late.append(access)

    watched(stand, batch, Attribution(stand.shared, tell), ended)
    return late[0] if late else None


def watched(stand: Stand, batch: ForwardBatch, attribution: Attribution, ended: list[bool]) -> None:
    """Run a step under attribution; `ended` gets an element at the declared end."""
    with stand.watched_by(attribution):
        stand.run(batch, lambda: ended.append(True))


def _told(stand: Stand, fault: Fault) -> str:
    touched = "written" if fault.kind == "write" else "read"
    by = fault.code or "native code"
    entry = fault.offset // stand.table.element_size()
    if fault.buffer != "req_to_token":
        return f"{fault.buffer} was {touched} later, near slot {entry}, by {by}"
    row, position = divmod(entry, stand.table.shape[1])
    return f"{fault.buffer} was {touched} later, near row {row}, position {position}, by {by}"


def changed_by(stand: Stand, batch: ForwardBatch) -> str | None:
    """With what the tables were overwritten at the declared end so that the output changed.

    None: the output stays. Unproven if the same step twice gives different bits.
    """
    quiet, *again = (stand.run(batch)[0] for _ in range(BASELINES))
    if not all(torch.equal(quiet, output) for output in again):
        raise Unproven("the same step twice gives different bits")
    for name, slots in _patterns(stand).items():
        output, _ = stand.run_overwritten(batch, slots)
        if not torch.equal(quiet, output):
            return name
    # Where the host cannot come between a replay's marker and the rest, the table stands for both.
    if stand.map is None or stand.one_launch:
        return None
    for name, slots in _map_patterns(stand).items():
        output, _ = stand.run(batch, partial(stand.write_map, slots))
        if not torch.equal(quiet, output):
            return name
    return None


def _map_patterns(stand: Stand) -> dict[str, torch.Tensor]:
    """Maps to overwrite with: other valid slots, and the padding slot."""
    assert stand.map is not None
    size = stand.shape.page_size
    return {
        "the map's pages in another order": stand.map.roll(size),
        "a map to the padding slot": torch.zeros_like(stand.map),
    }


def _patterns(stand: Stand) -> dict[str, torch.Tensor]:
    """Tables to overwrite with: other valid slots, the padding slot, and the last one."""
    slots = stand.slots
    return {
        "the rows in another order": slots.flip(0).roll(1, 0),
        "the padding slot everywhere": torch.zeros_like(slots),
        "the last slot everywhere": torch.full_like(slots, int(slots.max())),
    }
