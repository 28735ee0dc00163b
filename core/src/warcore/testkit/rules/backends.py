"""What a backend must keep to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import torch

from warcore.contract import GraphKind
from warcore.errors import WarcoreError, WiringError
from warcore.testkit.check import check
from warcore.testkit.late import late_accesses
from warcore.testkit.outcome import Failure, NotApplicable, Refuted, Unproven
from warcore.testkit.walk import cells_of, declared, stands

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.testkit.cell import Cell
    from warcore.testkit.stand import Stand
    from warcore.testkit.subject import Subject

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Of the largest output: kernels sum in an order of their own."""


@check("backend")
def votes(subject: Subject) -> None:
    """A backend answers `shared_read_ends` for every mode with a SharedReadEnds, twice the same.

    An engine let an unanswered mode fall back to the earliest end; prefills of one backend then
    read tables that the next step had rewritten.

    Answer every ForwardMode from constants; what depends on a batch belongs into
    `prepare_prefill_shared_read_snapshot`.
    """
    try:
        # Wiring asks for every vote, twice.
        for _ in stands(subject, graphs=(GraphKind.NONE,)):
            pass
    except WiringError as error:
        raise Refuted(Failure("a vote for every mode", error.what)) from error


@check("backend", needs=("backend.votes",))
def no_late_access(subject: Subject) -> None:
    """Nothing of the shared tables is touched after the point that the backend declares.

    Several engines shipped a backend that declared its reads done with the metadata and looked into
    the page table again in a layer; the text went wrong under load only.

    Copy what the layers need into memory from `ctx.static` before the declared end, or declare the
    later end.
    """
    found = list(late_accesses(subject))
    if found:
        same = sum(late.where == found[0].where for late in found)
        raise Refuted(attrs.evolve(found[0], more=same - 1))


@check("backend", needs=("backend.votes",))
def parity(subject: Subject) -> None:
    """The output of every live token is what attention owes it, in every mode and under graphs.

    A verify kernel once read one position too many of a padded request, and acceptance fell by a
    third before anybody looked at the numbers.

    Compare the failing cell with dense attention; lengths, windows and masks are the usual places.
    """
    for stand in stands(subject):
        for cell in cells_of(subject, stand):
            for batch in stand.steps(cell):
                output, _ = stand.run(batch)
                _compare(stand, cell, batch, output)


def _compare(stand: Stand, cell: Cell, batch: ForwardBatch, output: torch.Tensor) -> None:
    tokens = range(batch.padded_tokens) if batch.logits_at is None else batch.logits_at.tolist()
    rows, positions = batch.rows[batch.q_row].tolist(), batch.positions.tolist()
    owed = torch.stack([stand.model.owed(rows[t], positions[t]) for t in tokens])
    error = (output.double().cpu() - owed.cpu()).abs().max() / owed.abs().max()
    limit = TOLERANCE[stand.spec.dtype]
    if not error <= limit:
        raise Refuted(
            Failure(
                f"attention within {limit:g} of the largest output",
                f"an output is off by {error:.2g} of the largest"
                if error == error  # noqa: PLR0124  NaN is what differs from itself
                else "an output is NaN: a slot that nobody owns was read, or a row of no scores",
                cell=str(cell),
            )
        )


@check("backend", needs=("backend.votes", "backend.no_late_access"))
def overwritten(subject: Subject) -> None:
    """The output does not change when the tables are overwritten right after the declared end.

    It is the worst that a scheduler may legally do, made deterministic: a copy that is an alias, or
    a kernel with a pointer of its own, shows here whatever it is written in.

    Keep a copy in memory of your own, not a view; `.to()` and slicing may give views.
    """
    told = False
    for stand in stands(subject):
        for cell in cells_of(subject, stand):
            for batch in stand.steps(cell):
                quiet, _ = stand.run(batch)
                again, _ = stand.run(batch)
                if not torch.equal(quiet, again):
                    raise Unproven(f"{cell}: the same step twice gives different bits")
                for name, slots in _patterns(stand).items():
                    output, fence = stand.run(batch, partial(stand.write_table, slots))
                    stand.write_table(stand.slots)
                    told = told or fence.settled
                    if not torch.equal(quiet, output):
                        raise Refuted(
                            Failure(
                                declared(stand, cell),
                                f"the output changes when the table is overwritten after that with "
                                f"{name}",
                                seen_by=("poison",),
                                cell=str(cell),
                            )
                        )
    if not told:
        raise NotApplicable("it declares no end in any mode: every step is coarse")


def _patterns(stand: Stand) -> dict[str, torch.Tensor]:
    """Tables to overwrite with: other valid slots, the padding slot, and the last one."""
    slots = stand.slots
    return {
        "the rows in another order": slots.flip(0).roll(1, 0),
        "the padding slot everywhere": torch.zeros_like(slots),
        "the last slot everywhere": torch.full_like(slots, int(slots.max())),
    }


@check("backend", needs=("backend.votes",))
def captures(subject: Subject) -> None:
    """What the in-graph metadata and the layers do can be captured, and a replay gives its bits.

    A `.item()` in the metadata of one backend ran fine eagerly and stalled the device at every step
    once the rest was a graph.

    Keep host reads and shapes that depend on data in `init_forward_metadata_out_graph`.
    """
    try:
        for stand in stands(subject):
            for cell in cells_of(subject, stand):
                for batch in stand.steps(cell):
                    stand.run(batch)
    except WarcoreError as error:
        raise Refuted(Failure("steps that can be captured", error.what)) from error
