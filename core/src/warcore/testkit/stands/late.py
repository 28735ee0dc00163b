"""Late accesses: what of the shared tables is touched after the declared end, and by whom."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import torch

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.device.operations import noting_origins
from warcore.testkit.detectors.elements import element, region, same
from warcore.testkit.detectors.guard import PageGuard, supported
from warcore.testkit.outcome import Failure, NotApplicable, Unproven
from warcore.testkit.stands.claims import in_claims
from warcore.testkit.stands.culprits import ClosedToCalls, Culprits
from warcore.testkit.stands.walk import cells_of, declared, stands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.access import Access
    from warcore.testkit.stands.cell import Cell
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject


NO_END: Final = "it declares no end in any mode: every step is coarse"
"""Why nothing can come too late."""
BASELINES: Final = 3
"""How often a step is run before what changes its output is told from what it does by itself."""


def page_guard() -> PageGuard:
    """A guard to enter; Unproven where it cannot work."""
    why = supported()
    if why is not None:
        raise Unproven(why)
    return PageGuard()


def late_accesses(subject: Subject) -> Iterator[Failure]:
    """A failure for each cell in which something is touched too late, and each line that does.

    First the grid, then a few eager steps of every other shape that the backend says it serves.
    NotApplicable if no step has an end.
    """
    shown: list[Failure] = []
    told = False
    # A replay's touches have the lines of its capture then.
    with page_guard() as guard, Culprits(guard, subject.cls) as culprits, noting_origins():
        for stand in stands(subject, guard=guard):
            for cell in cells_of(subject, stand):
                told |= tells_an_end(stand, cell)
                yield from _late_in(stand, cell, culprits, shown)

        def look(stand: Stand, cell: Cell) -> Iterator[Failure]:
            nonlocal told
            told |= tells_an_end(stand, cell)
            return _late_in(stand, cell, culprits, shown)

        yield from in_claims(subject, look, guard)
    if not told and not subject.cells:
        raise NotApplicable(NO_END)


def _late_in(
    stand: Stand, cell: Cell, culprits: Culprits, shown: list[Failure]
) -> Iterator[Failure]:
    """The late accesses of both steps of a cell, each line once.

    shown: gets the first one that showed in an output; later ones need not.
    """
    lines: set[str] = set()
    for batch in stand.steps(cell) if tells_an_end(stand, cell) else ():
        claim = partial(declared, stand, cell)
        for late in late_access(stand, batch, culprits, claim, str(cell), shows=not shown):
            if "poison" in late.seen_by:
                shown.append(late)
            if late.where not in lines:
                lines.add(late.where)
                yield late


def tells_an_end(stand: Stand, cell: Cell) -> bool:
    """Whether the static vote gives the steps of a cell an end: the others are coarse."""
    ends = stand.scope.ends[cell.mode]
    if cell.mode.is_prefill:
        return cell.mode is ForwardMode.EXTEND and ends is SharedReadEnds.PRE_REPLAY
    return ends is not SharedReadEnds.UNKNOWN


def late_access(
    stand: Stand,
    batch: ForwardBatch,
    culprits: Culprits,
    claim: Callable[[], str],
    cell: str,
    *,
    shows: bool = True,
) -> list[Failure]:
    """What a step touches after the end of its reads, each line once; none: nothing.

    The page guard gives the verdict. The step is then run again: under attribution, which names
    operation and line, and, with `shows`, with other tables from that end on, which may show in
    the output. claim: what the end of the step was said to be, once it was run; empty: nothing.
    """
    try:
        found = culprits.of(stand, batch)
    except ClosedToCalls as error:
        said = claim()
        return [Failure(said, str(error), error.where, ("guard",), cell)] if said else []
    said = claim()
    if not said or not found:
        return []
    lines: dict[str, Failure] = {}
    for culprit in found:
        access = culprit.access
        where = str(access.place or "")
        what = told(stand, access, "read later", "written later", culprit.code) + culprit.more
        seen_by = tuple(each for each in ("guard", "attribution") if each in access.seen_by)
        lines.setdefault(where, Failure(said, what, where, seen_by, cell))
    first, *others = lines.values()
    with suppress(Unproven):
        pattern = changed_by(stand, batch) if shows else None
        if pattern is not None:
            what = f"{first.observed}; the output changes with {pattern}"
            first = attrs.evolve(first, observed=what, seen_by=(*first.seen_by, "poison"))
    return [first, *others]


def told(stand: Stand, access: Access, read: str, written: str, code: str = "") -> str:
    """Which elements of the tables a touch was of, by what operation, in which phase.

    code: the library that the guard has seen at it.
    """
    table = stand.tables.named[access.buffer]
    done = written if access.kind == "write" else read
    by = ": ".join(dict.fromkeys(filter(None, (code, access.operation)))) or "native code"
    phase = f" in phase {access.phase}" if access.phase else ""
    if "attribution" not in access.seen_by:
        # The guard alone has seen it: it knows where a page was touched, not how far that went.
        place = element(table, access.start)
        return f"{access.buffer} was {done}, near {place}, by {by}{phase}"
    which = region(access.buffer, table, access.start, access.stop)
    return f"{which} was {done} by {by}{phase}"


def changed_by(stand: Stand, batch: ForwardBatch) -> str | None:
    """With what the tables were overwritten at the declared end so that the output changed.

    None: the output stays. Unproven if the same step twice gives different bits.
    """
    patterns = _patterns(stand, batch)
    quiet, *again = (stand.run(batch)[0] for _ in range(BASELINES))
    if not all(same(quiet, output) for output in again):
        raise Unproven("the same step twice gives different bits")
    for name, slots in patterns.items():
        output, _ = stand.run_overwritten(batch, slots)
        if not same(quiet, output):
            return name
    # Where the host cannot come between a replay's marker and the rest, the table stands for both.
    if stand.tables.map is None or stand.one_launch:
        return None
    for name, slots in _map_patterns(stand).items():
        output, _ = stand.run(batch, partial(stand.tables.write_map, slots))
        if not same(quiet, output):
            return name
    return None


def _map_patterns(stand: Stand) -> dict[str, torch.Tensor]:
    """Maps to overwrite with: other valid slots, and the padding slot."""
    assert stand.tables.map is not None
    size = stand.shape.page_size
    return {
        "the map's pages in another order": stand.tables.map.roll(size),
        "a map to the padding slot": torch.zeros_like(stand.tables.map),
    }


def _patterns(stand: Stand, batch: ForwardBatch) -> dict[str, torch.Tensor]:
    """Tables to overwrite with: other valid slots, the padding slot, and a canary that holds NaN.

    There are no lengths to overwrite: no scheduler writes them, they live in the relay (decision
    006).
    """
    slots = stand.tables.slots
    found = {
        "the rows in another order": slots.flip(0).roll(1, 0),
        "the padding slot everywhere": torch.zeros_like(slots),
    }
    canary = _canary(stand, batch)
    if canary is not None:
        found["a slot of nobody, which holds NaN, everywhere"] = torch.full_like(slots, canary)
    return found


def _canary(stand: Stand, batch: ForwardBatch) -> int | None:
    """A slot whose page holds NaN from here on: the last one of the shortest request.

    None if that request has come so far.
    """
    tables, size = stand.tables, stand.shape.page_size
    row = int(batch.rows[batch.seq_lens.argmin()])
    if int(batch.seq_lens.min()) > tables.slots.shape[1] - size:
        return None
    for number, layer in enumerate(stand.kv):
        page = int(tables.slots_in(number)[row, -1]) // size
        for memory in layer.values():
            nan = torch.full((), float("nan"), device=memory.device)
            memory[page] = nan.to(memory.dtype)
    return int(tables.slots[row, -1])
