"""Which kinds of step an engine will run, and which of them are replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from warcore.backend import AttentionBackend
from warcore.buckets import HOST_POSITIONS, plan_buckets
from warcore.contract import ForwardMode
from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warcore.batch import Bucket
    from warcore.config import EngineConfig
    from warcore.wired import Wired

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


@attrs.frozen
class PlannedGraphs:
    """How many steps are captured at start, and why no more are."""

    runner: str | None
    """The graph runner; None: every step runs eagerly."""
    captures: int
    """How many steps it captures."""
    why: str | None
    """Why nothing or not everything is captured, and who else could not serve; None: no reason."""
    next: str | None = None
    """What would change that; None if it is as it was asked for."""


def what_is_captured(config: EngineConfig, wired: Wired) -> PlannedGraphs:
    """What is captured, or why nothing is."""
    choices, count = wired.choices, len(wired.buckets)
    count += sum(len(runner.buckets) for runner, _ in wired.drafts)
    others = "; ".join(choices.unable_graph_runners)
    listing = "warcore list-plugins --kind graph_runner"
    if choices.graph_runner is None:
        if config.graph_runner == "none":
            return PlannedGraphs(None, 0, "switched off by --graph-runner none")
        if not wired.device.supports_graphs:
            return PlannedGraphs(None, 0, f"this device ({choices.spec.device}) has none")
        none = f"none can serve: {others}" if others else "none is installed and switched on"
        return PlannedGraphs(None, 0, none, listing)
    if not count:
        mode = wired.limits.decode_mode
        if _captures(wired, ForwardMode.EXTEND) and not _captures(wired, mode):
            mode = ForwardMode.EXTEND
        cause, remedy = _why_uncaptured(mode, config, wired)
        reasons = [cause, *choices.unable_graph_runners]
        return PlannedGraphs(choices.graph_runner.name, 0, "; ".join(reasons), remedy)
    long = (
        f"a step runs eagerly if it attends to more than {_most_positions(config)} positions, over "
        "all its requests (--graph-positions N)"
    )
    every = _of_any_length(config, wired, choices.graph_runner.cls.modes)
    left_out = len(every) > len(wired.buckets)
    reasons = [*([long] if left_out else []), *choices.unable_graph_runners]
    why = "; ".join(reasons) or None
    return PlannedGraphs(choices.graph_runner.name, count, why, listing if others else None)


def refuse_what_cannot_be_captured(config: EngineConfig, wired: Wired) -> None:
    """ConfigError, with the cause, if sizes of captures were named and none of them is captured."""
    for option, mode, sizes in (
        ("--graph-buckets", wired.limits.decode_mode, config.graph_buckets),
        ("--graph-prefill-buckets", ForwardMode.EXTEND, config.graph_prefill_buckets),
    ):
        if sizes and not any(bucket.mode is mode for bucket in wired.buckets):
            cause, remedy = _why_uncaptured(mode, config, wired)
            text = ",".join(map(str, sizes))
            raise ConfigError(f"{option} {text} captures nothing: {cause}", next=remedy)


def _why_uncaptured(mode: ForwardMode, config: EngineConfig, wired: Wired) -> tuple[str, str]:
    """Why no step of `mode` is captured, and what would change that."""
    choices, limits = wired.choices, wired.limits
    runner = choices.graph_runner
    assert runner is not None
    if not _captures(wired, mode):
        what = f"{runner.name} captures no {mode.value} steps"
        return what, "warcore list-plugins --kind graph_runner"
    sizes = config.graph_prefill_buckets if mode.is_prefill else config.graph_buckets
    if found := _of_any_length(config, wired, frozenset({mode})):
        least = min(found, key=lambda bucket: (_positions(bucket), bucket.tokens))
        return _too_long(least, config, wired, named=bool(sizes))
    if mode.is_prefill and sizes and sizes[0] > limits.longest:
        what = f"one request holds at most {limits.longest} tokens"
        return what, "--kv-pages N, or smaller buckets"
    everything = _everything(config, wired)
    if plan_buckets(everything, limits, frozenset({mode}), lambda _: 0, choices.spec.device):
        cause = f"backend:{choices.backend.name} wants every {mode.value} step to run eagerly"
        return cause, "return a number from its graph_key, or name another --backend"
    if sizes:
        cause = f"{_requests(limits.max_running)} of {limits.longest} tokens have no room for them"
        return cause, "smaller buckets"
    cause = f"{runner.name} captures only prefills, and none where no size is named"
    return cause, "--graph-prefill-buckets N,N"


def _too_long(least: Bucket, config: EngineConfig, wired: Wired, *, named: bool) -> tuple[str, str]:
    """Even the step that attends to the fewest positions attends to too many."""
    prefill = least.mode.is_prefill
    what = (
        f"a prefill of {least.tokens} tokens" if prefill else f"a step of {_requests(least.rows)}"
    )
    count, most = _positions(least), _most_positions(config)
    remedies = [f"--graph-positions {count}"]
    if named and least.rows > 1:
        remedies.append("smaller buckets")
    if wired.choices.backend.cls.graph_key is AttentionBackend.graph_key:
        remedies.append("give the backend a graph_key")
    return f"{what} attends to {count} positions, more than {most}", ", or ".join(remedies)


def _of_any_length(
    config: EngineConfig, wired: Wired, modes: frozenset[ForwardMode]
) -> Sequence[Bucket]:
    """What would be captured if a step could attend to any number of positions."""
    device, key = wired.choices.spec.device, wired.backend.graph_key
    return plan_buckets(_everything(config, wired), wired.limits, modes, key, device)


def _everything(config: EngineConfig, wired: Wired) -> EngineConfig:
    """`config`, with as many positions as there can be."""
    limits = wired.limits
    return attrs.evolve(config, graph_positions=limits.max_running * limits.longest)


def _captures(wired: Wired, mode: ForwardMode) -> bool:
    runner = wired.choices.graph_runner
    return runner is not None and mode in runner.cls.modes


def _positions(bucket: Bucket) -> int:
    return bucket.rows * bucket.max_seq_len


def _most_positions(config: EngineConfig) -> int:
    """Beyond this nothing is captured, where something was left out for its positions."""
    return config.graph_positions or HOST_POSITIONS


def kinds_of_step(wired: Wired) -> Iterator[StepKind]:
    """In the order in which a person meets them: prefill, decode, and mixed if they are."""
    mixed = [ForwardMode.MIXED] if wired.limits.mixed else []
    for mode in (ForwardMode.EXTEND, wired.limits.decode_mode, *mixed):
        buckets = [bucket for bucket in wired.buckets if bucket.mode is mode]
        if not buckets:
            yield StepKind(mode, "eager", ALL)
            continue
        yield StepKind(mode, "graph", _captured(mode, buckets, wired.limits.longest))
        yield StepKind(mode, "eager", "whatever no capture holds")


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
