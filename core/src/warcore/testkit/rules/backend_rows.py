"""What a row may see of the other rows of its batch, and a replay of the batch before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from warcore.contract import ForwardMode, GraphKind
from warcore.testkit.detectors.elements import same
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cell import BUCKETS, DRAFTED, ROWS
from warcore.testkit.stands.owing import TOLERANCE, error_of
from warcore.testkit.stands.walk import new_stand, stands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

PREFIXES: Final = (40, 3, 17, 1, 8)
"""Tokens of rows 1, 2, ... before a step."""
ORDER: Final = (BUCKETS[-1], 1, BUCKETS[0], BUCKETS[-1] - 1, BUCKETS[0] - 1, ROWS, BUCKETS[-1] - 1)
"""Batch sizes one after the other: smaller ones after larger ones, both sides of each bucket."""
TOKENS: Final = (8, 5, 7, 8, 4)
"""New tokens of one prefill after the other, in a bucket of eight."""
WIDTHS: Final = {
    ForwardMode.DECODE: 1,
    ForwardMode.TARGET_VERIFY: DRAFTED,
    ForwardMode.DRAFT_EXTEND: DRAFTED,
    ForwardMode.EXTEND: 5,
    ForwardMode.MIXED: 4,
}
"""New tokens of each request."""


@check("backend", needs=("backend.votes",), after=("backend.parity",))
def replays(subject: Subject) -> None:
    """A replay leaves what an eager step leaves, in the output and in the cache: at every edge of a
    bucket, after a larger batch, and after a batch of another mode.

    Padding tokens of a graph wrote their states into the last slot of the cache in vLLM (#43869),
    which was somebody's; eager steps, which have no padding, were right.

    Write all of a static buffer in each step, up to `padded_size` and `padded_tokens`; or answer
    None in `graph_key`, and such steps run eagerly.
    """
    replayed = 0
    for stand in stands(subject, graphs=(GraphKind.UNBROKEN, GraphKind.BREAKABLE)):
        with new_stand(subject, stand.shape, GraphKind.NONE) as eager:
            for cell, pair in _sequence(stand, eager):
                if not subject.wants(cell):
                    continue
                before = stand.replays
                outputs = [
                    each.run(batch)[0] for each, batch in zip((stand, eager), pair, strict=True)
                ]
                if stand.replays > before:
                    replayed += 1
                    _alike(stand, eager, outputs, cell)
    if not replayed and not subject.cells:
        raise NotApplicable("its graph_key sends every step of the kit the eager way")


def _sequence(
    stand: Stand, eager: Stand
) -> Iterator[tuple[str, tuple[ForwardBatch, ForwardBatch]]]:
    """Steps for both stands, each prepared just before it."""
    for mode in ForwardMode:
        if mode is ForwardMode.MIXED or (
            stand.shape.tree and mode is not ForwardMode.TARGET_VERIFY
        ):
            continue
        for place, size in enumerate(TOKENS if mode is ForwardMode.EXTEND else ORDER):
            after = "first" if not place else f"after-{_sizes(mode)[place - 1]}"
            cell = f"{mode.value}-{stand.graph.value}-{size}-{after}-{stand.shape}"
            for each in (stand, eager):
                _prefill(each)
            yield cell, (_batch(stand, mode, size), _batch(eager, mode, size))


def _sizes(mode: ForwardMode) -> tuple[int, ...]:
    return TOKENS if mode is ForwardMode.EXTEND else ORDER


def _prefill(stand: Stand) -> None:
    """Every row has its prefix."""
    rows = list(range(1, ROWS + 1))
    stand.run(stand.batch(ForwardMode.EXTEND, rows, (0,) * ROWS, PREFIXES))


def _batch(stand: Stand, mode: ForwardMode, size: int) -> ForwardBatch:
    if mode is ForwardMode.EXTEND:
        return stand.batch(mode, [1], (PREFIXES[0],), (size,))
    width = WIDTHS[mode]
    ragged = mode is ForwardMode.DRAFT_EXTEND
    lens = tuple(1 + place % width if ragged else width for place in range(size))
    return stand.batch(mode, list(range(1, size + 1)), PREFIXES[:size], lens)


def _alike(stand: Stand, eager: Stand, outputs: list[torch.Tensor], cell: str) -> None:
    limit = TOLERANCE[stand.spec.dtype]
    claim = "replays that leave what eager steps leave"
    error = error_of(*outputs)
    if not error <= limit:
        what = f"the output of a replay differs from an eager step's by {error:.2g} of the largest"
        raise Refuted(Failure(claim, what, cell=cell))
    for layer, (replayed, ran) in enumerate(zip(stand.kv, eager.kv, strict=True)):
        for name in ran:
            # The padding page is everybody's, and nobody reads it.
            page = _first_difference(replayed[name][1:], ran[name][1:], limit)
            if page is not None:
                row = _owner(stand, layer, page + 1)
                what = f"a replay leaves other {name} in a page of row {row}, layer {layer}"
                raise Refuted(Failure(claim, what, cell=cell))


def _first_difference(one: torch.Tensor, other: torch.Tensor, limit: float) -> int | None:
    """The first page whose contents are not close."""
    near = torch.isclose(one.double(), other.double(), limit, limit, equal_nan=True)
    far = (~near).flatten(1).any(1)
    return int(far.nonzero()[0]) if far.any() else None


def _owner(stand: Stand, layer: int, page: int) -> int:
    """Whose page it is: the number of a row of the table."""
    pages = stand.tables.slots_in(layer) // stand.shape.page_size
    return int((pages == page).any(1).nonzero()[-1])


# ---- rows ----------------------------------------------------------------------------------------


@check("backend", needs=("backend.votes",), after=("backend.padding", "backend.replays"))
def rows(subject: Subject) -> None:
    """The output of a request is the same whatever the other rows of its batch are, whatever their
    memory holds, and in whatever order they come.

    Keys of one request landed in the pages of another in SGLang (#24527, #35049), for a page was
    given away while somebody still wrote to it; each request alone was answered well.

    Go to the table by `batch.rows`, to requests by `batch.q_row`; never take anything over a batch.
    """
    for stand in stands(subject):
        for mode in ForwardMode:
            cell = f"{mode.value}-{stand.graph.value}-neighbours-{stand.shape}"
            tree = stand.shape.tree and mode is not ForwardMode.TARGET_VERIFY
            if not tree and subject.wants(cell):
                _other_memory(stand, mode, cell)
                _other_company(stand, mode, cell)


def _of(stand: Stand, mode: ForwardMode, who: tuple[int, ...]) -> dict[int, torch.Tensor]:
    """Each request's output [its tokens, width] in a step of these rows."""
    prefixes = tuple(PREFIXES[row - 1] for row in who)
    lens = (WIDTHS[mode],) * len(who)
    output, _ = stand.run(stand.batch(mode, list(who), prefixes, lens))
    each = output.shape[0] // len(who)
    return {row: output[nth * each : (nth + 1) * each] for nth, row in enumerate(who)}


def _other_memory(stand: Stand, mode: ForwardMode, cell: str) -> None:
    """The same rows, and other numbers in the neighbours' pages."""
    who = (1, 2, 3)
    _prefill(stand)
    quiet, again = _of(stand, mode, who), _of(stand, mode, who)
    for row in who:
        repeats = same(quiet[row], again[row])
        _scramble(stand, [other for other in who if other != row])
        found = _of(stand, mode, who)[row]
        if not _same(stand, found, quiet[row], exact=repeats):
            what = f"the output of row {row} changes with what the pages of the others hold"
            raise Refuted(
                Failure("rows that see their own pages only", what, "", ("poison",), cell)
            )
        _prefill(stand)


def _scramble(stand: Stand, rows: list[int]) -> None:
    """Other numbers in the pages of these rows, and none that is not finite."""
    for number, layer in enumerate(stand.kv):
        slots = stand.tables.slots_in(number)[rows]
        pages = sorted(set((slots // stand.shape.page_size).flatten().tolist()))
        for memory in layer.values():
            held = memory[pages]
            held = held.nan_to_num(3) if held.is_floating_point() else held
            memory[pages] = (held.flip(0) * 2).to(memory.dtype)


def _other_company(stand: Stand, mode: ForwardMode, cell: str) -> None:
    """Each row with other neighbours, at another place of the batch."""
    _prefill(stand)
    quiet = _of(stand, mode, (1, 2, 3))
    for who in ((3, 1, 2), (5, 3, 1), (2, 5), (4, 2, 5, 3)):
        for row, found in _of(stand, mode, who).items():
            if row in quiet and not _same(stand, found, quiet[row], exact=False):
                what = (
                    f"the output of row {row} in a batch of rows {who} is not that of rows 1 to 3"
                )
                raise Refuted(Failure("rows that do not touch", what, cell=cell))


def _same(stand: Stand, found: torch.Tensor, quiet: torch.Tensor, *, exact: bool) -> bool:
    if exact:
        return same(found, quiet)
    return error_of(found, quiet) <= TOLERANCE[stand.spec.dtype]
