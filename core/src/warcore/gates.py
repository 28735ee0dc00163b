"""The prefill gates: whether an EXTEND step may publish its read-done event before the body.

The order is part of the contract: nothing of a later gate runs when an earlier one fails, and the
event does not exist before the last gate has passed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.errors import shown
from warcore.fence import FenceReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from warcore.batch import ForwardBatch
    from warcore.scope import EngineScope, Reader, Scope

log = logging.getLogger("warcore.fence")

Verdict = tuple[FenceReason, str]
"""(reason, detail); FINE opens the way to record and offer."""


def walk_gates(
    mode: ForwardMode,
    engine: EngineScope,
    *,
    enabled: bool,
    reads: Callable[[], Verdict],
    staging: Callable[[], Verdict],
) -> Verdict:
    """The gates in their order: of a live batch here, and of batches to come in plan.py.

    reads: the third gate, where the readers' reads end. staging: the fourth, if anybody stages.
    """
    if not enabled:
        return FenceReason.DISABLED, ""
    if mode is not ForwardMode.EXTEND:
        return FenceReason.MODE_NOT_EXTEND, ""
    verdict = reads()
    if verdict[0] is not FenceReason.FINE or not engine.later_prefill_reader:
        return verdict
    return staging() if engine.stagers else (FenceReason.NO_STAGER, engine.algorithm)


def judge_reads(ends: SharedReadEnds, latest: str) -> Verdict:
    """What the third gate says of reads that end there. latest: whose they are."""
    if ends is SharedReadEnds.PRE_REPLAY:
        return FenceReason.FINE, ""
    if ends is SharedReadEnds.UNKNOWN:
        return FenceReason.UNDECLARED, latest
    return FenceReason.NOT_PRE_REPLAY, f"{latest}: {ends.name}"


def prefill_gates(
    batch: ForwardBatch, num_qo_tokens: int, scope: Scope, engine: EngineScope, *, enabled: bool
) -> Verdict:
    """Walk the gates for one batch; on the forward stream, after metadata init.

    num_qo_tokens: the padded token bucket when a graph will replay, else the batch's own tokens.
    """
    return walk_gates(
        batch.mode,
        engine,
        enabled=enabled,
        reads=lambda: reads_have_ended(batch, num_qo_tokens, scope.readers),
        staging=lambda: _everything_is_staged(batch, engine),
    )


def reads_have_ended(batch: ForwardBatch, num_qo_tokens: int, readers: Iterable[Reader]) -> Verdict:
    """Gate 3: the latest, over `readers`, of each one's snapshot result or else static vote.

    Of a prefill batch, on the forward stream, after its out-graph metadata.
    """
    ends, latest = SharedReadEnds.PRE_REPLAY, ""
    for reader in readers:
        end = reader.votes.get(batch.mode)
        if reader.snapshot is not None:
            try:
                answer = reader.snapshot(forward_batch=batch, num_qo_tokens=num_qo_tokens)
            except Exception as error:  # a plugin's failure costs overlap, never text
                log.debug("%s: the snapshot raised", reader.plugin, exc_info=error)
                return FenceReason.SNAPSHOT_ERROR, f"{reader.plugin} raised {shown(error)}"
            if answer is not None and not isinstance(answer, SharedReadEnds):
                return FenceReason.SNAPSHOT_ERROR, f"{reader.plugin} returned {shown(answer)}"
            end = end if answer is None else answer
        if end is not None and end > ends:
            ends, latest = end, reader.plugin
    return judge_reads(ends, latest)


def _everything_is_staged(batch: ForwardBatch, engine: EngineScope) -> Verdict:
    """Gate 4: every stager is called; an error beats a refusal."""
    declined, failed = "", ""
    for plugin, stage in engine.stagers:
        try:
            staged = stage(batch)
        except Exception as error:  # a plugin's failure costs overlap, never text
            log.debug("%s: the stager raised", plugin, exc_info=error)
            failed = failed or f"{plugin} raised {shown(error)}"
            continue
        if not isinstance(staged, bool):
            failed = failed or f"{plugin} returned {shown(staged)}, which is no bool"
        elif not staged:
            declined = declined or plugin
    if failed:
        return FenceReason.STAGER_ERROR, failed
    return (FenceReason.STAGER_DECLINED, declined) if declined else (FenceReason.FINE, "")
