"""Assembly: a running engine, put together around what was wired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.batching import Batching
from warcore.capturing import build_graph_runner, capture
from warcore.device import EventRing, open_device
from warcore.draftrunners import build_drafting
from warcore.launcher import Launcher
from warcore.loading import load_model
from warcore.relay import Relay
from warcore.runner import PublishingRunner
from warcore.scheduler import Scheduler, normal_loop, overlap_loop
from warcore.step import Step
from warcore.wired import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.config import EngineConfig
    from warcore.device import Device
    from warcore.model import Model
    from warcore.wired import Wired


@attrs.frozen(eq=False)
class Assembly:
    """The parts of a running engine."""

    config: EngineConfig
    model: Model
    scheduler: Scheduler
    runner: PublishingRunner
    loop: Callable[[Scheduler], None]
    """One iteration of the loop that the config names."""
    wired: Wired
    """What the plugins declared, the algorithm and the stagers included."""

    @property
    def device(self) -> Device:
        """Where it runs; closed with it."""
        return self.wired.device

    def counts(self) -> dict[str, Any]:
        """What was counted since the start, as `Engine.stats` gives it."""
        scheduler = self.scheduler
        runners = (self.runner, *(runner for runner, _ in self.wired.drafts))
        captures = [each.captures.facts() for each in runners if each.captures is not None]
        return {
            "steps": scheduler.steps,
            "tokens": scheduler.tokens,
            "retracts": scheduler.retracts,
            "staging_stalls": scheduler.launcher.staging_stalls,
            "drafts": scheduler.drafts.facts() if scheduler.limits.drafted else None,
            "graphs": {k: sum(each[k] for each in captures) for k in captures[0]}
            if captures
            else None,
            "fences": scheduler.launcher.counters.facts(),
        }

    def describe(self) -> dict[str, Any]:
        """Facts for people and scripts."""
        return describe(self.config, self.wired)


def assemble(
    config: EngineConfig,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    device: Device | None = None,
) -> Assembly:
    """Wire, load and connect what `config` names; the weights come last.

    device: one that is open already, in place of what the config names; the assembly owns it.
    """
    device = device or open_device(config.device, config.host)
    try:
        wired = wire(config, device)
        assembly = connect(config, wired, load_model(wired.choices, progress))
        _capture(assembly.wired, assembly.runner, progress)
        # Whatever was filled on the way here is there before the first step on any stream.
        device.synchronize()
    except BaseException:
        device.close()
        raise
    return assembly


def connect(config: EngineConfig, wired: Wired, model: Model) -> Assembly:
    """Put the runner, the step and the scheduler around the model."""
    device, limits = wired.device, wired.limits
    runner = PublishingRunner(
        device,
        model,
        wired.backend,
        wired.scope,
        wired.engine_scope,
        ring=EventRing(device, depth=2),
        buckets=wired.buckets,
        prefill_read_done=config.prefill_read_done,
    )
    speculation, drafting = wired.choices.speculation, None
    state = None if speculation is None else speculation.relay
    relay = Relay(limits.max_running, device.torch_device, state)
    if speculation is not None:
        drafting, wired = build_drafting(config, wired, runner, model, relay)
    step = Step(
        device,
        runner,
        wired.engine_scope,
        batching=Batching(wired.shared.tables, relay, limits),
        relay=relay,
        done=EventRing(device, depth=2),
        drafting=drafting,
    )
    launcher = Launcher(
        device,
        wired.schedule,
        wired.forward,
        shared=wired.shared,
        step=step,
        limits=limits,
        forced_coarse=config.fence == "coarse",
    )
    scheduler = Scheduler(launcher, limits, wired.shared.place)
    loop = overlap_loop if config.loop == "overlap" else normal_loop
    return Assembly(config, model, scheduler, runner, loop, wired)


def _capture(
    wired: Wired, target: PublishingRunner, progress: Callable[[str, int, int], None] | None
) -> None:
    """Whatever is replayed is captured now."""
    chosen = wired.choices.graph_runner
    if chosen is None:
        return
    named = f"graph_runner:{chosen.name}"
    served = [(named, target, wired.choices.spec)]
    served += [(f"{named} of draft {n}", *each) for n, each in enumerate(wired.drafts)]
    for name, runner, spec in served:
        if runner.buckets:
            build_graph_runner(
                chosen,
                runner,
                device=wired.device,
                forward=wired.forward,
                spec=spec,
                statics=wired.statics_of(name),
            )
    capture([runner for _, runner, _ in served], wired.forward, progress)


def describe(config: EngineConfig, wired: Wired) -> dict[str, Any]:
    """What an engine is made of, and how large it is."""
    device, choices, limits = wired.device, wired.choices, wired.limits
    graph_runner, speculation = choices.graph_runner, choices.speculation
    return {
        "model": choices.ref,
        "backend": choices.backend.name,
        "graph_runner": "none" if graph_runner is None else graph_runner.name,
        "device": str(choices.spec.device),
        "host": getattr(device, "mode", None),
        "dtype": str(choices.spec.dtype).removeprefix("torch."),
        "loop": config.loop,
        "page_size": limits.page_size,
        "kv_pages": limits.pages,
        "swa_pages": limits.swa_pages or None,
        "context_length": limits.max_context,
        "max_running_requests": limits.max_running,
        "prefill_chunk": limits.prefill_chunk,
        "mixed": limits.mixed,
        "spec_algo": None if speculation is None else speculation.algorithm.name,
        "spec_tokens": limits.drafted,
        "spec_topk": 1 if speculation is None else speculation.spec.topk,
        "stagers": [] if speculation is None else speculation.names[1:],
    }
