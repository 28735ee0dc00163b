"""Assembly: from choices to living objects, in the order in which they need each other."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from warcore.backend import AttentionBackend, BackendContext
from warcore.buckets import plan_buckets
from warcore.capturing import capture_all
from warcore.device import EventRing, open_device
from warcore.draftrunners import build_drafting
from warcore.errors import blame
from warcore.hooks import read_scope
from warcore.kinds import refuse_what_cannot_be_captured, what_is_captured
from warcore.launcher import Launcher
from warcore.limits import Limits
from warcore.memory import kv_pool, plan_memory
from warcore.model import ModelContext
from warcore.relay import Relay
from warcore.runner import ModelRunner
from warcore.scheduler import Scheduler, normal_loop, overlap_loop
from warcore.scope import EngineScope
from warcore.shared import SharedBuffers
from warcore.statics import Statics
from warcore.step import Step
from warcore.wiring import choose

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore.batch import Bucket
    from warcore.config import EngineConfig
    from warcore.device import Device, Stream
    from warcore.model import Model
    from warcore.scope import Scope
    from warcore.wiring import Choices

log = logging.getLogger("warcore.assembly")


@attrs.frozen(eq=False)
class Assembly:
    """The parts of a running engine."""

    config: EngineConfig
    device: Device
    model: Model
    choices: Choices
    limits: Limits
    scheduler: Scheduler
    runner: ModelRunner
    loop: Callable[[Scheduler], None]
    """One iteration of the loop that the config names."""
    wired: Wired
    """What the plugins declared, the algorithm and the stagers included."""

    def describe(self) -> dict[str, Any]:
        """Facts for people and scripts."""
        return describe(self.config, self.device, self.choices, self.limits)


@attrs.frozen(eq=False)
class Wired:
    """Everything but the weights: the plugins are alive and have said where their reads end."""

    device: Device
    choices: Choices
    limits: Limits
    schedule: Stream
    forward: Stream
    shared: SharedBuffers
    backend: AttentionBackend
    kv: list[dict[str, torch.Tensor]]
    """kv[layer][name] of the target, the padding page included."""
    pages: int
    """Of the full pool, and of a draft's, without the padding page."""
    scope: Scope
    engine_scope: EngineScope
    buckets: tuple[Bucket, ...]
    """The steps to capture, the largest first; none without a graph runner."""


def describe(
    config: EngineConfig, device: Device, choices: Choices, limits: Limits
) -> dict[str, Any]:
    """What an engine is made of, and how large it is."""
    speculation = choices.speculation
    return {
        "model": choices.ref,
        "backend": choices.backend_name,
        "graph_runner": choices.graph_runner_name,
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
        capture_all(wired, assembly.runner, progress)
        # Whatever was filled on the way here is there before the first step on any stream.
        device.synchronize()
    except BaseException:
        device.close()
        raise
    return assembly


def wire(
    config: EngineConfig,
    device: Device,
    *,
    runs: bool = True,
) -> Wired:
    """Choose, build and ask the plugins. Loads no weights.

    runs: False if no step will ever run: then the KV pool is the padding page alone.
    """
    choices = choose(config, device)
    memory = plan_memory(config, choices)
    limits = Limits(
        max_running=config.max_running_requests,
        max_context=choices.context,
        page_size=choices.spec.page_size,
        pages=memory.pages,
        prefill_chunk=config.prefill_chunk,
        mixed=config.mixed,
        drafted=0 if choices.speculation is None else choices.speculation.spec.num_tokens,
        window=choices.window,
        swa_pages=memory.swa_pages,
    )
    pages, swa_pages = (limits.pages, limits.swa_pages) if runs else (0, 0)
    schedule, forward = device.stream("schedule"), device.stream("forward")
    shared = SharedBuffers(
        device,
        schedule,
        rows=limits.max_running,
        context=choices.spec.max_context,
        page_size=limits.page_size,
        mapped=None if limits.window is None else pages,
    )
    own = [limits.window is not None and each.window is not None for each in choices.info.layers]
    kv = kv_pool(choices.backend, choices.spec, [swa_pages if each else pages for each in own])
    backend = _make_backend(choices, device, forward, shared, limits, kv=kv)
    wired = Wired(
        device=device,
        choices=choices,
        limits=limits,
        schedule=schedule,
        forward=forward,
        shared=shared,
        backend=backend,
        kv=kv,
        pages=pages,
        scope=read_scope(choices.backend_name, backend),
        engine_scope=EngineScope(),
        buckets=_buckets(config, choices, limits, backend),
    )
    refuse_what_cannot_be_captured(config, wired)
    if choices.graph_runner is not None and not wired.buckets:
        lost = what_is_captured(config, wired)
        log.info("every step runs eagerly: %s. Next: %s", lost.why, lost.next)
    return wired


def _buckets(
    config: EngineConfig, choices: Choices, limits: Limits, backend: AttentionBackend
) -> tuple[Bucket, ...]:
    if choices.graph_runner is None:
        return ()
    modes, device = choices.graph_runner.modes, choices.spec.device
    who = f"backend:{choices.backend_name}"
    with blame(who, "graph_key"):
        return plan_buckets(config, limits, modes, backend.graph_key, device, who=who)


def connect(config: EngineConfig, wired: Wired, model: Model) -> Assembly:
    """Put the runner, the step and the scheduler around the model."""
    device, limits = wired.device, wired.limits
    runner = ModelRunner(
        device,
        model,
        wired.backend,
        wired.scope,
        wired.engine_scope,
        ring=EventRing(device, depth=2),
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
        tables=wired.shared.tables,
        relay=relay,
        done=EventRing(device, depth=2),
        max_tokens=limits.max_tokens,
        drafting=drafting,
    )
    launcher = Launcher(
        device,
        wired.schedule,
        wired.forward,
        shared=wired.shared,
        step=step,
        forced_coarse=config.fence == "coarse",
        drafted=None if speculation is None else limits.drafted,
    )
    scheduler = Scheduler(launcher, limits, wired.shared.place)
    loop = overlap_loop if config.loop == "overlap" else normal_loop
    return Assembly(config, device, model, wired.choices, limits, scheduler, runner, loop, wired)


def load_model(choices: Choices, progress: Callable[[str, int, int], None] | None = None) -> Model:
    """The target's weights."""
    spec = choices.spec
    weights = None if progress is None else partial(progress, "weights")
    context = ModelContext(spec.device, spec.dtype, choices.model_options, weights)
    with blame(f"model {choices.family.__name__}", f"load({choices.ref!r})"):
        return choices.family.load(choices.ref, context)


def _make_backend(
    choices: Choices,
    device: Device,
    forward: Stream,
    shared: SharedBuffers,
    limits: Limits,
    *,
    kv: list[dict[str, torch.Tensor]],
) -> AttentionBackend:
    """The backend, built on the forward stream as everything else it will do."""
    statics = Statics(device, forward)
    context = BackendContext(
        spec=choices.spec,
        max_batch=limits.max_running,
        max_tokens=limits.max_tokens,
        shared=shared.tables,
        kv=kv,
        graph=choices.graph,
        options=choices.backend_options,
        static=statics.static,
        stage=statics.stage,
    )
    with blame(f"backend {choices.backend_name}", "__init__"):
        backend: AttentionBackend = forward.submit(choices.backend, context).result()
    return backend
