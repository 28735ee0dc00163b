"""What a graph runner must keep to: its replays compute what eager steps do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from warcore.errors import WarcoreError
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.runs.check import check
from warcore.testkit.stands.cell import BUCKETS
from warcore.testkit.stands.runnerstand import (
    CLOSE,
    batch_of,
    captured,
    captures_of,
    compare,
    eager_stand,
    others,
    output_of,
    runner_stand,
)
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.contract import ForwardMode
    from warcore.testkit.stands.stand import Stand
    from warcore.testkit.subject import Subject

EDGES = sorted({n + d for n in BUCKETS for d in (-1, 0, 1)})
"""Batch sizes around every bucket, the smallest first; the last one runs eagerly."""
LARGE_THEN_SMALL = (BUCKETS[-1], BUCKETS[-1] - 1, BUCKETS[0], 1)


@check("graph_runner")
def replays_equal_eager(subject: Subject) -> None:
    """A replay computes what eager execution does, at every edge of every bucket.

    A merged set-up of metadata made new tensors where the graph read the old ones (SGLang #26019):
    page tables of zeros, and answers that nobody had asked for.

    Load each static input in place before each replay, and replay the graph of that very bucket. Or
    leave the mode out of `modes`: its steps run eagerly.
    """
    for mode, stand, plain in _pairs(subject):
        for size in EDGES:
            cell = f"{mode.value}-{size}"
            if subject.wants(cell):
                for _ in range(2):
                    compare(stand, plain, mode, size, cell)
        if not stand.replays and not subject.cells:
            raise Refuted(Failure("steps that are replayed", "no step was: all ran eagerly"))


@check("graph_runner", needs=("graph_runner.replays_equal_eager",))
def padding(subject: Subject) -> None:
    """What a bucket has more than a batch points at row 0 and slot 0, and writes nowhere else.

    Padding of a draft's graph had lengths below zero in SGLang (#31270), which no kernel is made
    for: what it reads and writes then belongs to others.

    Fill what lies behind the live rows and tokens with row 0, slot 0 and length 1 in each load, or
    leave `load` to the base class.
    """
    for mode, stand, _ in _pairs(subject):
        for size in range(1, BUCKETS[-1] + 1):
            cell = f"{mode.value}-{size}"
            if subject.wants(cell):
                _refuse_foreign_writes(stand, batch_of(stand, mode, size), cell)


@check("graph_runner", needs=("graph_runner.padding",))
def smaller_after_larger(subject: Subject) -> None:
    """A batch that is smaller than the one before finds nothing of it: no row, no slot, no token.

    A stale tail of indices, which no request of the batch had written, corrupted the state of
    others that were alive beside it in TensorRT-LLM (#13278).

    Write every element that a replay reads in each load, padding included, or leave `load` to the
    base class.
    """
    for mode, stand, plain in _pairs(subject):
        for size in LARGE_THEN_SMALL:
            cell = f"{mode.value}-{size}"
            if subject.wants(cell):
                output_of(stand, batch_of(stand, mode, BUCKETS[-1]), cell)
                _refuse_foreign_writes(stand, batch_of(stand, mode, size), cell)
                compare(stand, plain, mode, size, cell)


@check("graph_runner", needs=("graph_runner.replays_equal_eager",))
def unequal_lengths(subject: Subject) -> None:
    """A replay serves requests with unequal numbers of new tokens, whatever the capture had.

    Graphs of SGLang laid the tokens of a draft out by one number for each request and asked for
    them by another (#27545): with more than one request, each read at the wrong offset.

    Load `q_start` and `q_row` like the other inputs: they change while the bucket stays. Or leave
    the mode out of `modes`: its steps run eagerly.
    """
    for mode, stand, plain in _pairs(subject):
        for size in EDGES:
            cell = f"{mode.value}-{size}-ragged"
            if mode.value != "decode" and subject.wants(cell):
                compare(stand, plain, mode, size, cell, ragged=True)


@check("graph_runner", needs=("graph_runner.replays_equal_eager",), devices=("host",))
def addresses(subject: Subject) -> None:
    """Once an input or a buffer lies elsewhere than at capture, a replay is an error: it is never
    an output from the old memory.

    Graphs kept the address of a workspace that had grown and moved, and read freed memory
    (flashinfer #4553, #4399); an engine that compares addresses before each replay fails loudly
    instead (vLLM #52440).

    Let the errors of `graph.replay()` and of the core through, and replay by nothing else.
    """
    for mode in captured(subject):
        for what, moved in (("input", _input_moves), ("backend", _buffer_moves)):
            cell = f"{mode.value}-{what}"
            if subject.wants(cell):
                with _pair(subject) as (stand, plain):
                    _refuse_old_memory(stand, plain, moved, mode, cell)


def _refuse_old_memory(
    stand: Stand, plain: Stand, moved: Any, mode: ForwardMode, cell: str
) -> None:
    owed, _ = plain.run(batch_of(plain, mode, 2))
    batch = batch_of(stand, mode, 2)
    replays = stand.replays
    output_of(stand, batch, cell)
    if stand.replays == replays:
        raise NotApplicable(f"{cell} is not replayed")
    # So that the old memory gives another output than the new one would.
    output_of(stand, batch_of(stand, mode, 1), cell)
    with torch.inference_mode():
        moved(stand, batch)
    try:
        output, _ = stand.run(batch)
    except WarcoreError:
        return
    if (output - owed).abs().max() > CLOSE * owed.abs().max():
        what = "memory has moved since the capture, and a replay gives what is in the old one"
        raise Refuted(Failure("an error once memory has moved", what, cell=cell))


def _input_moves(stand: Stand, batch: ForwardBatch) -> None:
    """The rows of the captured step that holds `batch` get other memory."""
    captures = captures_of(stand, batch.mode)
    bucket: Any = captures.bucket_for(batch)
    view = captures.runner.load(batch, bucket)
    _move(view.rows)


def _buffer_moves(stand: Stand, batch: ForwardBatch) -> None:
    """What the kit's backend gathered gets other memory."""
    backend: Any = stand.backend
    statics = backend.ctx.static.__self__.named
    del batch
    _move(statics["paged.slots"])


def _move(tensor: torch.Tensor) -> None:
    other = tensor.clone()
    tensor.set_(other.untyped_storage(), 0, other.shape, other.stride())


def _refuse_foreign_writes(stand: Stand, batch: ForwardBatch, cell: str) -> None:
    before = others(stand, batch)
    output_of(stand, batch, cell)
    if not torch.equal(before, others(stand, batch)):
        what = "a replay wrote keys or values of padding into a slot that is not the padding slot"
        raise Refuted(Failure("padding that points at slot 0", what, cell=cell))


@contextmanager
def _pair(subject: Subject) -> Iterator[tuple[Stand, Stand]]:
    with quiet_torch(), runner_stand(subject) as stand, eager_stand(subject) as plain:
        yield stand, plain


def _pairs(subject: Subject) -> Iterator[tuple[ForwardMode, Stand, Stand]]:
    """New stands for each mode: what one mode leaves behind must not hide what another does."""
    for mode in captured(subject):
        with _pair(subject) as (stand, plain):
            yield mode, stand, plain
