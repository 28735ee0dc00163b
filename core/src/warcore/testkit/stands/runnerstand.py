"""A graph runner on a stand of its own, with a backend of the kit's that reads where it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.errors import WarcoreError
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.stands.cell import DRAFTED, Shape
from warcore.testkit.stands.paged import paged
from warcore.testkit.stands.stand import Stand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.captures import Captures
    from warcore.testkit.subject import Subject

SHAPE = Shape()
MODES = (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND)
PREFIXES = (40, 3, 17, 1, 8)
"""Tokens of each row before a step."""
CLOSE = 1e-5
"""Of the largest output: products of other shapes sum in another order."""


def runner_stand(
    subject: Subject,
    vote: SharedReadEnds = SharedReadEnds.PRE_REPLAY,
    *,
    backend: Any = None,
    runner: Any = None,
) -> Stand:
    """The subject around a backend that reads where `vote` says; every row has its prefix.

    backend, runner: in place of those.
    """
    stand = Stand(
        backend or paged(vote),
        SHAPE,
        subject.cls.kind,
        device=subject.device,
        runner=runner or subject.cls,
        runner_options=subject.options,
    )
    return _prepared(stand)


def eager_stand(subject: Subject) -> Stand:
    """The same without graphs."""
    backend = paged(SharedReadEnds.PRE_REPLAY)
    return _prepared(Stand(backend, SHAPE, GraphKind.NONE, device=subject.device))


def _prepared(stand: Stand) -> Stand:
    rows = list(range(1, len(PREFIXES) + 1))
    stand.run(stand.batch(ForwardMode.EXTEND, rows, (0,) * len(rows), PREFIXES))
    return stand


def captured(subject: Subject) -> Iterator[ForwardMode]:
    """The modes that the runner captures, of those that the kit runs."""
    found = [mode for mode in MODES if mode in subject.cls.modes]
    if not found:
        raise NotApplicable("it captures none of DECODE, TARGET_VERIFY and DRAFT_EXTEND")
    yield from found


def batch_of(stand: Stand, mode: ForwardMode, size: int, *, ragged: bool = False) -> ForwardBatch:
    """A step of the first `size` rows; ragged: of unequal numbers of new tokens."""
    width = 1 if mode is ForwardMode.DECODE else DRAFTED
    lens = tuple(1 + place % width if ragged else width for place in range(size))
    return stand.batch(mode, list(range(1, size + 1)), PREFIXES[:size], lens)


def captures_of(stand: Stand, mode: ForwardMode) -> Captures:
    """What the runner under check has captured of `mode`."""
    captures = stand.runner_of(mode).captures
    if captures is None:
        raise NotApplicable(f"it captures no {mode.value} steps")
    return captures


def compare(
    stand: Stand, plain: Stand, mode: ForwardMode, size: int, cell: str, *, ragged: bool = False
) -> None:
    """A step of both. Refuted unless they agree, or if one cannot be run."""
    got = output_of(stand, batch_of(stand, mode, size, ragged=ragged), cell)
    owed, _ = plain.run(batch_of(plain, mode, size, ragged=ragged))
    error = (got - owed).abs().max() / owed.abs().max()
    if not error <= CLOSE:
        what = f"a replay differs from eager execution by {error:.2g} of the largest output"
        raise Refuted(Failure("replays that compute what eager steps do", what, cell=cell))


def output_of(stand: Stand, batch: ForwardBatch, cell: str) -> torch.Tensor:
    """The output of a step. Refuted if it cannot be run."""
    try:
        output, _ = stand.run(batch)
    except WarcoreError as error:
        raise Refuted(Failure("a replay of every bucket", error.what, cell=cell)) from error
    return output


def others(stand: Stand, batch: ForwardBatch) -> torch.Tensor:
    """The keys and values that are no business of the batch."""
    memory = torch.stack([each.flatten(0, 1) for layer in stand.kv for each in layer.values()])
    memory[:, batch.out_slots] = 0
    memory[:, 0] = 0
    return memory.nan_to_num(1.5)
