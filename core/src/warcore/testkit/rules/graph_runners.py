"""What a graph runner must keep to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.errors import WarcoreError
from warcore.fence import FenceReason
from warcore.testkit.cell import BUCKETS, DRAFTED, Shape
from warcore.testkit.check import check
from warcore.testkit.outcome import Failure, NotApplicable, Refuted
from warcore.testkit.paged import paged
from warcore.testkit.stand import Stand
from warcore.testkit.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.batch import ForwardBatch
    from warcore.testkit.subject import Subject

SHAPE = Shape()
MODES = (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND)
PREFIXES = (40, 3, 17, 1, 8)


def _stand(subject: Subject, vote: SharedReadEnds) -> Stand:
    return Stand(
        paged(vote),
        SHAPE,
        subject.cls.kind,
        device=subject.device,
        runner=subject.cls,
        runner_options=subject.options,
    )


def _eager(subject: Subject, vote: SharedReadEnds) -> Stand:
    return Stand(paged(vote), SHAPE, GraphKind.NONE, device=subject.device)


def _prepared(stand: Stand) -> None:
    """Every row has its prefix."""
    rows = list(range(1, len(PREFIXES) + 1))
    stand.run(stand.batch(ForwardMode.EXTEND, rows, (0,) * len(rows), PREFIXES))


def _batch(
    stand: Stand, mode: ForwardMode, size: int, *, ragged: bool = False, after: int = 0
) -> ForwardBatch:
    width = 1 if mode is ForwardMode.DECODE else DRAFTED
    rows = list(range(1, size + 1))
    lens = tuple(1 + place % width if ragged else width for place in range(size))
    return stand.batch(mode, rows, tuple(p + after for p in PREFIXES[:size]), lens)


def _captured(subject: Subject) -> Iterator[ForwardMode]:
    """The modes that the runner captures, of those that the kit runs."""
    found = [mode for mode in MODES if mode in subject.cls.modes]
    if not found:
        raise NotApplicable("it captures none of DECODE, TARGET_VERIFY and DRAFT_EXTEND")
    yield from found


@check("graph_runner")
def replays_equal_eager(subject: Subject) -> None:
    """A replay computes what eager execution does: at every edge of a bucket, for batches that are
    smaller than the one before, and for requests of unequal lengths.

    A padded row that kept the position of an earlier, larger batch wrote its key into another
    request's page; it showed only when the load fell.

    Load every static input whole, padding included; never let a replay see rows of another batch.
    """
    order = [BUCKETS[-1], 1, *(n + d for n in BUCKETS for d in (-1, 0, 1) if n + d > 0)]
    with quiet_torch(), _stand(subject, SharedReadEnds.PRE_REPLAY) as stand:
        with _eager(subject, SharedReadEnds.PRE_REPLAY) as plain:
            for each in (stand, plain):
                _prepared(each)
            for mode in _captured(subject):
                for size in order:
                    for ragged in (False, True):
                        cell = f"{mode.value}-{size}{'-ragged' if ragged else ''}"
                        if not subject.wants(cell):
                            continue
                        outputs = [_run(each, mode, size, ragged, cell) for each in (stand, plain)]
                        _alike(outputs, cell)
        if not stand.replays and not subject.unmet():
            raise Refuted(Failure("steps that are replayed", "no step was: all ran eagerly"))


def _run(stand: Stand, mode: ForwardMode, size: int, ragged: bool, cell: str) -> torch.Tensor:
    batch = _batch(stand, mode, size, ragged=ragged)
    before = _others(stand, batch)
    try:
        output, _ = stand.run(batch)
    except WarcoreError as error:
        raise Refuted(Failure("a replay of every bucket", error.what, cell=cell)) from error
    if not torch.equal(before, _others(stand, batch)):
        what = "a replay wrote keys or values of padding into a slot that is not the padding slot"
        raise Refuted(Failure("padding that points at slot 0", what, cell=cell))
    return output


def _others(stand: Stand, batch: ForwardBatch) -> torch.Tensor:
    """The keys and values that are no business of the batch."""
    memory = torch.stack([each.flatten(0, 1) for layer in stand.kv for each in layer.values()])
    memory[:, batch.out_slots] = 0
    memory[:, 0] = 0
    return memory.nan_to_num(1.5)


def _alike(outputs: list[torch.Tensor], cell: str) -> None:
    got, owed = outputs
    error = (got - owed).abs().max() / owed.abs().max()
    if not error <= 1e-5:
        what = f"a replay differs from eager execution by {error:.2g} of the largest output"
        raise Refuted(Failure("replays that compute what eager steps do", what, cell=cell))


@check("graph_runner", needs=("graph_runner.replays_equal_eager",))
def marker(subject: Subject) -> None:
    """The marker of a capture fires in each replay, behind the in-graph metadata, before the body.

    An engine without a marker fenced its graphs at their front, although their metadata still read;
    under load a row of the table changed in the middle of it.

    Hand `ctx.marker` to `ctx.step` within the capture, once, and return it from `marker(bucket)`.
    """
    with quiet_torch(), _stand(subject, SharedReadEnds.IN_REPLAY) as stand:
        _prepared(stand)
        for mode in _captured(subject):
            for step in range(3):
                cell = f"{mode.value}-{step}"
                if not subject.wants(cell):
                    continue
                batch = _batch(stand, mode, 2)
                replays = stand.replays
                quiet, fence = stand.run(batch)
                if stand.replays == replays or fence.reason is not FenceReason.FINE:
                    raise NotApplicable(f"{cell} is not replayed")
                _not_early(stand, batch, quiet, cell)
                if stand.marked(batch):
                    _not_late(stand, batch, quiet, cell)


def _not_early(stand: Stand, batch: ForwardBatch, quiet: torch.Tensor, cell: str) -> None:
    ends: list[int] = []

    def end() -> None:
        ends.append(1)
        stand.write_table(torch.zeros_like(stand.slots))

    output, _ = stand.run(batch, end)
    stand.write_table(stand.slots)
    if len(ends) != 1:
        what = f"a replay passes the end of the reads {len(ends)} times"
        raise Refuted(Failure("a marker that each replay passes once", what, cell=cell))
    if not torch.equal(output, quiet):
        what = "the in-graph metadata read what was overwritten at the marker: it fires too early"
        raise Refuted(Failure("a marker behind the metadata", what, seen_by=("poison",), cell=cell))


def _not_late(stand: Stand, batch: ForwardBatch, quiet: torch.Tensor, cell: str) -> None:
    slots = stand.backend.slots(batch)
    output, _ = stand.run(batch, partial(slots.zero_))
    if torch.equal(output, quiet):
        what = "the layers had run when the marker fired: it fires too late to be worth anything"
        raise Refuted(Failure("a marker before the body", what, cell=cell))


@check("graph_runner", needs=("graph_runner.replays_equal_eager",))
def fences(subject: Subject) -> None:
    """The fence of a replayed step falls where the latest vote says, whatever the vote.

    A runner that recorded an event of its own published before the replay had read.

    Leave records and offers to the core; a runner hands over a marker and nothing else.
    """
    for vote in (SharedReadEnds.PRE_REPLAY, SharedReadEnds.IN_REPLAY, SharedReadEnds.POST_REPLAY):
        with quiet_torch(), _stand(subject, vote) as stand:
            _prepared(stand)
            for mode in _captured(subject):
                for size in range(1, BUCKETS[-1] + 2):
                    cell = f"{vote.name}-{mode.value}-{size}"
                    if not subject.wants(cell):
                        continue
                    batch = _batch(stand, mode, size)
                    quiet, _ = stand.run(batch)
                    output, fence = stand.run(
                        batch, partial(stand.write_table, torch.zeros_like(stand.slots))
                    )
                    stand.write_table(stand.slots)
                    if fence.reason is not FenceReason.FINE or not torch.equal(output, quiet):
                        what = f"the fence fell too early, or not at all ({fence.reason.value})"
                        raise Refuted(Failure(f"reads end at {vote.name}", what, cell=cell))
