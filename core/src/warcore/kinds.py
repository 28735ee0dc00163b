"""Which kinds of step an engine will run, and which of them are replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from warcore.batch import Bucket
from warcore.contract import ForwardMode, GraphKind
from warcore.graphs import PADDING, GraphRunner
from warcore.inputs import blank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.assembly import Wired
    from warcore.config import EngineConfig

RunsAs = Literal["eager", "graph"]
ALL = "all"
"""`batches` of a mode that runs in one way."""


@attrs.frozen
class StepKind:
    """Steps of one mode that run in one way."""

    mode: ForwardMode
    runs_as: RunsAs
    batches: str
    """Which batches of this mode run so, in words."""


def what_is_captured(config: EngineConfig, wired: Wired) -> str:
    """What is captured, or why nothing is."""
    choices, count = wired.choices, len(wired.buckets)
    if choices.graph is not GraphKind.NONE:
        if not count:
            return f"none: of what may run, {choices.graph_runner_name} captures nothing"
        return f"{choices.graph_runner_name} captures {count} step{'s' if count > 1 else ''}"
    if config.graph_runner == "none":
        return "none, by --graph-runner none"
    if not wired.device.supports_graphs:
        return f"none: this device ({choices.spec.device}) has none"
    return "none: no graph runner that can serve is installed (warcore list-plugins)"


def kinds_of_step(wired: Wired) -> Iterator[StepKind]:
    """In the order in which a person meets them: prefill, decode, and mixed if they are."""
    mixed = [ForwardMode.MIXED] if wired.limits.mixed else []
    for mode in (ForwardMode.EXTEND, ForwardMode.DECODE, *mixed):
        buckets = [bucket for bucket in wired.buckets if bucket.mode is mode]
        if not buckets:
            yield StepKind(mode, "eager", ALL)
            continue
        yield StepKind(mode, "graph", _captured(mode, buckets, wired.limits.longest))
        if not _all_are_held(wired, mode, buckets):
            yield StepKind(mode, "eager", "all others")


def _captured(mode: ForwardMode, buckets: list[Bucket], longest: int) -> str:
    """What the buckets hold."""
    reach: dict[int, int] = {}
    for bucket in buckets:
        size = bucket.tokens if mode.is_prefill else bucket.rows
        reach[size] = max(reach.get(size, 0), bucket.max_seq_len)
    if mode.is_prefill:
        return f"up to {max(reach)} prompt tokens, padded to {', '.join(map(str, sorted(reach)))}"
    if set(reach.values()) == {longest}:
        return f"up to {_requests(max(reach))}"
    most = {tokens: size for size, tokens in sorted(reach.items())}
    (tokens, size), *others = most.items()
    return ", ".join(
        [f"up to {_requests(size)} of {tokens} tokens", *(f"{n} of {t}" for t, n in others)]
    )


def _requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"


def _all_are_held(wired: Wired, mode: ForwardMode, buckets: list[Bucket]) -> bool:
    """Whether a bucket holds every batch of `mode` that can come, as the base class chooses.

    A key changes with the length only beyond some bucket's `max_seq_len`, or at lengths that the
    backend wants to run eagerly, which lie there too: so these are all the places to look at.
    """
    limits, runner = wired.limits, wired.choices.graph_runner
    if runner is not None and runner.bucket_for is not GraphRunner.bucket_for:
        return False
    sizes = sorted({bucket.tokens for bucket in buckets})
    if sizes[-1] < (limits.prefill_chunk if mode.is_prefill else limits.max_running):
        return False
    steps = zip([0, *sizes], sizes)  # noqa: B905  one is longer
    if mode.is_prefill and any(size > PADDING * (below + 1) for below, size in steps):
        return False
    for rows, tokens in {(bucket.rows, bucket.tokens) for bucket in buckets}:
        beyond = {bucket.max_seq_len + 1 for bucket in buckets}
        shortest = -(-tokens // rows)
        for length in {shortest, limits.longest, *beyond}:
            batch = Bucket(mode, rows, tokens, length)
            if shortest <= length <= limits.longest and not _held(wired, batch, buckets):
                return False
    return True


def _held(wired: Wired, wanted: Bucket, buckets: list[Bucket]) -> bool:
    key = wired.backend.graph_key(blank(wanted, wired.choices.spec.device))
    return any(
        b.key == key and b.rows >= wanted.rows and b.tokens >= wanted.tokens for b in buckets
    )
