"""Wiring: the plugins of an engine, alive, before any weights."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs

from warcore.backend import BackendContext
from warcore.buckets import plan_buckets
from warcore.choices import choose
from warcore.errors import blame
from warcore.hooks import read_scope
from warcore.kinds import refuse_what_cannot_be_captured, what_is_captured
from warcore.limits import Limits
from warcore.memory import kv_pool, plan_memory
from warcore.scope import EngineScope
from warcore.shared import SharedBuffers
from warcore.speculation import refuse_small_pool
from warcore.statics import Statics

if TYPE_CHECKING:
    import torch

    from warcore.backend import AttentionBackend, AttentionSpec
    from warcore.batch import Bucket
    from warcore.choices import Choices
    from warcore.config import EngineConfig
    from warcore.contract import ForwardMode
    from warcore.device import Device, Stream
    from warcore.runner import PublishingRunner
    from warcore.scope import Scope

log = logging.getLogger("warcore.assembly")


@attrs.frozen(eq=False)
class Wired:
    """Everything but the target's model: the plugins are alive, and said where their reads end."""

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
    statics: dict[str, Statics]
    """The static buffers of every plugin that was built so far, by `kind:name`."""
    scope: Scope
    """The target's readers: the backend alone until an algorithm is there too."""
    engine_scope: EngineScope
    """Nobody's until there is an algorithm."""
    buckets: tuple[Bucket, ...]
    """The steps of the target to capture, the largest first; none without a graph runner."""
    drafts: tuple[tuple[PublishingRunner, AttentionSpec], ...] = ()
    """The runners that an algorithm made, and what the backend of each serves."""

    def statics_of(self, plugin: str) -> Statics:
        """Static buffers for one more plugin."""
        made = self.statics[plugin] = Statics(self.device, self.forward)
        return made


def wire(config: EngineConfig, device: Device, *, runs: bool = True) -> Wired:
    """Choose, build and ask the plugins. Loads no weights.

    runs: False if no step will ever run: then the KV pool is the padding page alone.
    """
    choices = choose(config, device)
    limits = _limits(config, choices)
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
    kv = kv_pool(choices.backend.cls, choices.spec, [swa_pages if each else pages for each in own])
    name, statics = f"backend:{choices.backend.name}", Statics(device, forward)
    backend = _make_backend(choices, forward, shared, limits, kv=kv, statics=statics)
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
        statics={name: statics},
        scope=read_scope(choices.backend.name, backend),
        engine_scope=EngineScope(),
        buckets=buckets_of(config, choices, limits, backend),
    )
    refuse_what_cannot_be_captured(config, wired)
    if choices.graph_runner is not None and not wired.buckets:
        lost = what_is_captured(config, wired)
        log.info("every step runs eagerly: %s. Next: %s", lost.why, lost.next)
    return wired


def _limits(config: EngineConfig, choices: Choices) -> Limits:
    memory = plan_memory(config, choices)
    limits = Limits(
        max_running=config.max_running_requests,
        max_context=choices.context,
        page_size=choices.spec.page_size,
        pages=memory.pages,
        prefill_chunk=config.prefill_chunk,
        mixed=config.mixed,
        drafted=choices.drafted,
        window=choices.window,
        swa_pages=memory.swa_pages,
    )
    refuse_small_pool(limits)
    return limits


def _make_backend(
    choices: Choices,
    forward: Stream,
    shared: SharedBuffers,
    limits: Limits,
    *,
    kv: list[dict[str, torch.Tensor]],
    statics: Statics,
) -> AttentionBackend:
    """The backend, built on the forward stream as everything else it will do."""
    context = BackendContext(
        spec=choices.spec,
        max_batch=limits.max_running,
        max_tokens=limits.max_tokens,
        shared=shared.tables,
        kv=kv,
        graph=choices.graph,
        options=choices.backend.options,
        static=statics.static,
        stage=statics.stage,
    )
    with blame(f"backend {choices.backend.name}", "__init__"):
        backend: AttentionBackend = forward.submit(choices.backend.cls, context).result()
    return backend


def buckets_of(
    config: EngineConfig,
    choices: Choices,
    limits: Limits,
    backend: AttentionBackend,
    *,
    draft: frozenset[ForwardMode] | None = None,
) -> tuple[Bucket, ...]:
    """What will be captured of the steps that `backend` serves.

    draft: of a draft model, the modes of those that shall be; None: it is the target.
    """
    if choices.graph_runner is None:
        return ()
    modes, device = choices.graph_runner.cls.modes, choices.spec.device
    modes = modes if draft is None else modes & draft
    who = f"backend:{choices.backend.name}"
    with blame(who, "graph_key"):
        key = backend.graph_key
        return plan_buckets(config, limits, modes, key, device, who=who, draft=draft is not None)
