"""Where the fence of one kind of step will fall, from what was declared.

By the rules of the steps themselves: `resolve`, and the prefill gates in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.fence import NEXT_STEP, FenceReason
from warcore.gates import judge_reads, walk_gates
from warcore.graphs import GraphRunner
from warcore.resolution import resolve

if TYPE_CHECKING:
    from warcore.config import EngineConfig
    from warcore.gates import Verdict
    from warcore.kinds import RunsAs, StepKind
    from warcore.scope import BoundHook, EngineScope, Scope
    from warcore.wired import Wired

Fence = Literal["fine", "coarse", "per batch", "none"]
TARGET = "target"
"""The owner of a step that nobody else claims."""
_PLACES: dict[tuple[RunsAs, SharedReadEnds], str] = {
    ("eager", SharedReadEnds.PRE_REPLAY): "after the out-graph metadata",
    ("eager", SharedReadEnds.IN_REPLAY): "after the in-graph metadata",
    ("eager", SharedReadEnds.POST_REPLAY): "after the body",
    ("graph", SharedReadEnds.PRE_REPLAY): "before the replay",
    ("graph", SharedReadEnds.IN_REPLAY): "at the marker inside the graph",
    ("graph", SharedReadEnds.POST_REPLAY): "after the replay",
}
_COPY = "copy what the layers read before they run, then declare PRE_REPLAY or IN_REPLAY"
_UNMARKED = "--graph-runner none records it after the metadata, and gives the replay up"
_WHY = {
    FenceReason.DISABLED: "prefill steps may not publish: prefill_read_done is off",
    FenceReason.FORCED_COARSE: "declarations do not count under --fence coarse",
    FenceReason.UNDECLARED: "{} does not say where its reads end",
    FenceReason.NOT_PRE_REPLAY: "{}, but a prefill is fine only if all reads end before its layers",
    FenceReason.MODE_NOT_EXTEND: "a step of prefill chunks and decodes together is always coarse",
    FenceReason.NO_STAGER: "a draft reads after the target's prefill, and nobody copies ahead",
}
"""Why a fence will be coarse, for those reasons that are known ahead."""


@attrs.frozen
class PlannedFence:
    """One kind of step, and the fence that it will have."""

    mode: ForwardMode
    runs_as: RunsAs
    batches: str
    """Which batches of this mode run so, in words."""
    latest_read: SharedReadEnds
    """The latest vote."""
    whose: str
    """`kind:name` of the plugin whose vote that is."""
    owner: str
    """Whose last phase settles the fence: `target`, or `asked each step: kind:name`."""
    fence: Fence
    """coarse: the next table write waits for the whole step. none: the loop has no fence."""
    reason: FenceReason | None
    """What will be counted; None if it is decided per batch, or if there is no fence."""
    records_at: SharedReadEnds | None = None
    """The point at which the read-done event is recorded; None: nowhere."""
    detail: str = ""
    """Who or what the reason is about, in words."""
    next: str | None = None
    """What would let the fence fall earlier; None if it is fine or decided per batch."""

    @property
    def recorded(self) -> str:
        """Where the event is recorded, in words."""
        if self.records_at is None:
            return "nowhere" if self.reason is None else f"nowhere: {self.reason.value}"
        return _PLACES[self.runs_as, self.records_at]


def foresee(kind: StepKind, config: EngineConfig, wired: Wired) -> PlannedFence:
    """The fence of one kind of step."""
    scope, mode = wired.scope, kind.mode
    asked = [] if mode.is_prefill else _owners(wired.engine_scope)
    step = PlannedFence(
        mode=mode,
        runs_as=kind.runs_as,
        batches=kind.batches,
        latest_read=scope.ends[mode],
        whose=scope.latest[mode],
        owner=f"asked each step: {', '.join(asked)}" if asked else TARGET,
        fence="none",
        reason=None,
    )
    if config.loop == "normal":
        detail = "the normal loop has no fence: the host waits for each whole step"
        return attrs.evolve(step, detail=detail, next="--loop overlap")
    if config.fence == "coarse":
        return _coarse(step, FenceReason.FORCED_COARSE)
    if mode.is_prefill:
        return _prefill(step, scope, wired.engine_scope, enabled=config.prefill_read_done)
    step = _no_prefill(step, wired)
    if asked:
        assert step.reason is not None
        who, own = ", ".join(asked), step.reason.value
        detail = f"{who} names the last reader of each step; if it is the target: {own}"
        if wired.drafts:
            extend = _draft_extend(wired).value
            detail += f"; if it is a draft, its draft extend settles the fence: {extend}"
        remedy = step.next if step.fence == "coarse" else None
        return attrs.evolve(step, fence="per batch", reason=None, detail=detail, next=remedy)
    return step


def _prefill(
    step: PlannedFence, scope: Scope, engine: EngineScope, *, enabled: bool
) -> PlannedFence:
    """What the gates will say, as far as it does not hang on the batch."""
    deciding = deciding_readers(scope)

    def reads() -> Verdict:
        """The best that a snapshot can make of it: it answers for its own reader alone."""
        fixed = {r.plugin: r.votes[step.mode] for r in scope.readers if step.mode in r.votes}
        fixed = {plugin: end for plugin, end in fixed.items() if plugin not in deciding}
        latest = max(fixed, key=lambda plugin: fixed[plugin], default="")
        return judge_reads(fixed.get(latest, SharedReadEnds.PRE_REPLAY), latest)

    reason, who = walk_gates(
        step.mode, engine, enabled=enabled, reads=reads, staging=lambda: (FenceReason.FINE, "")
    )
    if reason is not FenceReason.FINE:
        return _coarse(step, reason, who)
    fine = attrs.evolve(step, fence="fine", reason=reason, records_at=SharedReadEnds.PRE_REPLAY)
    if deciding:
        without, _ = judge_reads(step.latest_read, step.whose)
        detail = f"{', '.join(deciding)} decides for each batch; where it does not: {without.value}"
        return attrs.evolve(fine, fence="per batch", reason=None, detail=detail)
    if engine.later_prefill_reader:
        names = ", ".join(plugin for plugin, _ in engine.stagers)
        return attrs.evolve(fine, detail=f"as long as {names} can copy ahead for the draft")
    return fine


def _no_prefill(step: PlannedFence, wired: Wired) -> PlannedFence:
    """Where `resolve` puts the event."""
    graph, marker = step.runs_as == "graph", wired.device.supports_external_events
    ends = resolve(step.latest_read, graph=graph, marker=marker)
    if ends is SharedReadEnds.UNKNOWN:
        return _coarse(step, FenceReason.UNDECLARED, step.whose)
    fine = attrs.evolve(step, fence="fine", reason=FenceReason.FINE, records_at=ends)
    if ends is not SharedReadEnds.POST_REPLAY:
        runner = wired.choices.graph_runner
        own = runner is not None and runner.cls.marker is not GraphRunner.marker
        if graph and ends is SharedReadEnds.IN_REPLAY and own:
            assert runner is not None
            return attrs.evolve(fine, detail=f"where {runner.name} has no marker: after the replay")
        return fine
    if step.latest_read is ends:
        detail = f"{step.whose} reads while its layers run: as late as a coarse fence"
        return attrs.evolve(fine, detail=detail, next=_COPY)
    detail = "the device records no event inside a graph: as late as a coarse fence"
    return attrs.evolve(fine, detail=detail, next=_UNMARKED)


def _draft_extend(wired: Wired) -> FenceReason:
    """Of the fence that a draft's last phase settles: it is resolved as that of a decode is."""
    ends = [runner.declared(ForwardMode.DRAFT_EXTEND) for runner, _ in wired.drafts]
    unknown = SharedReadEnds.UNKNOWN in ends
    return FenceReason.UNDECLARED if unknown else FenceReason.FINE


def _coarse(step: PlannedFence, reason: FenceReason, who: str = "") -> PlannedFence:
    return attrs.evolve(
        step,
        fence="coarse",
        reason=reason,
        records_at=None,
        detail=_WHY[reason].format(who),
        next=NEXT_STEP[reason],
    )


def deciding_readers(scope: Scope) -> list[str]:
    """The readers that answer the snapshot hook with more than the base class's None."""
    from warcore.backend import AttentionBackend

    base = AttentionBackend.prepare_prefill_shared_read_snapshot
    hooks = [reader.snapshot for reader in scope.readers if reader.snapshot is not None]
    return [hook.plugin for hook in hooks if not _is(hook, base)]


def _owners(engine: EngineScope) -> list[str]:
    """The plugins that answer the owner hook with more than the base class's None."""
    from warcore.spec import SpecAlgorithm

    base = SpecAlgorithm.last_shared_read_runner
    return [hook.plugin for hook in engine.owners if not _is(hook, base)]


def _is(hook: BoundHook, function: object) -> bool:
    return getattr(hook.function, "__func__", None) is function
