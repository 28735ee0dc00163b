"""Late accesses: what of the shared tables is touched after the declared end, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def late_accesses(subject: Subject) -> Iterator[Failure]:
    """A failure for each cell in which something is touched too late.

    The page guard gives the verdict; the step is then run once more under attribution, which names
    operation and line. Unproven where the guard cannot work.
    """
    why = supported()
    if why is not None:
        raise Unproven(why)
    with PageGuard() as guard:
        for stand in stands(subject, guard=guard):
            window = guard.window("forward")
            for cell in cells_of(subject, stand):
                for batch in stand.steps(cell):
                    faults = _closed(stand, batch, window)
                    if faults:
                        yield _failure(stand, cell, faults[0], _named(stand, batch))
                        break


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

    attribution = Attribution({"req_to_token": stand.table}, tell)
    before, stand.watcher = stand.watcher, attribution
    try:
        stand.run(batch, lambda: ended.append(True))
    finally:
        stand.watcher = before
    return late[0] if late else None


def _failure(stand: Stand, cell: Cell, fault: Fault, access: Access | None) -> Failure:
    width = stand.table.shape[1] * stand.table.element_size()
    row, position = fault.offset // width, fault.offset % width // stand.table.element_size()
    what = f"{fault.buffer} was {'written' if fault.kind == 'write' else 'read'} later, "
    what += f"near row {row}, position {position}, by {fault.code or 'native code'}"
    if access is None:
        return Failure(declared(stand, cell), what, seen_by=("guard",), cell=str(cell))
    phase = f" in phase {access.phase}" if access.phase else ""
    return Failure(
        declared(stand, cell),
        f"{what}: {access.operation}{phase}",
        where=str(access.place or ""),
        seen_by=("guard", "attribution"),
        cell=str(cell),
    )
