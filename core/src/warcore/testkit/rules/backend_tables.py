"""What a backend is handed in a step: tables as they are now, and a batch that is only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from warcore.contract import ForwardMode, GraphKind
from warcore.testkit.models.comparing import tensors
from warcore.testkit.outcome import Failure, Refuted
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cell import cell_of
from warcore.testkit.stands.owing import TOLERANCE, error_of, owed
from warcore.testkit.stands.walk import cells_of, stands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.stands.cell import Cell
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

PREFIXES: Final = (9, 17, 1)
"""Tokens of each request before its step: a batch that a bucket pads."""


@check("backend", needs=("backend.votes",), after=("backend.replays",))
def reads_anew(subject: Subject) -> None:
    """A step goes by the tables as they are when it is launched, not as an earlier step found them.

    Translated pages that layers kept from step to step were stale in six reports of one engine
    (SGLang #27091 and after): a row had come to another request, whose pages are others.

    Gather in the metadata of every step, or in its layers, where you declare POST_REPLAY. Neither a
    row nor a length nor an address tells whether the table has changed since.
    """
    for stand in stands(subject):
        for cell in _cells(subject, stand):
            for step in (0, 0, 1):
                batch = stand.steps(cell)[step]
                output, _ = stand.run(batch)
                error = error_of(output, owed(stand, batch))
                if not error <= TOLERANCE[stand.spec.dtype]:
                    raise Refuted(_stale(batch, error, cell))
                stand.move_pages()


def _cells(subject: Subject, stand: Stand) -> Iterator[Cell]:
    """One step of each mode, prepared. A captured one comes to its pages in the same bucket."""
    for mode in ForwardMode:
        captured = stand.graph is not GraphKind.NONE
        if (captured and mode is ForwardMode.MIXED) or (
            stand.shape.tree and mode is not ForwardMode.TARGET_VERIFY
        ):
            continue
        cell = cell_of(stand.shape, mode, stand.graph, PREFIXES)
        if subject.wants(cell):
            stand.prepare(cell)
            yield cell


def _stale(batch: ForwardBatch, error: float, cell: Cell) -> Failure:
    what = (
        f"after the pages of its rows have changed, the output of a {batch.mode.value} step is "
        f"off by {error:.2g} of the largest"
        if error == error  # noqa: PLR0124  NaN is what differs from itself
        else f"after the pages of its rows have changed, a {batch.mode.value} step reads old ones"
    )
    return Failure("a step that goes by the tables of its launch", what, cell=str(cell))


@check("backend", needs=("backend.votes",), after=("backend.captures",))
def leaves_the_batch(subject: Subject) -> None:
    """A step leaves every tensor of its batch as it was handed over.

    No public incident; the kit was refuted by it: `batch.seq_lens.sub_(1)` for a kernel that counts
    otherwise is right in the backend, and shifts what the core samples and publishes after it.

    Write into memory of your own, `torch.sub(batch.seq_lens, 1, out=...)`, or go on with a new
    tensor, `batch.seq_lens - 1`.
    """
    for stand in stands(subject, graphs=(GraphKind.NONE,)):
        for cell in cells_of(subject, stand):
            for batch in stand.steps(cell):
                before = tensors(batch)
                stand.run(batch)
                for name, now in tensors(batch).items():
                    if not torch.equal(now, before[name]):
                        what = f"`batch.{name}` is another after the step"
                        raise Refuted(Failure("a batch that is only read", what, cell=str(cell)))
