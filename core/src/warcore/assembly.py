"""Assembly: from choices to living objects, in the order in which they need each other."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import attrs

from warcore.backend import AttentionBackend, BackendContext
from warcore.contract import GraphKind
from warcore.device import open_device
from warcore.device.ring import EventRing
from warcore.errors import PluginError, WarcoreError
from warcore.memory import plan_memory
from warcore.model import ModelContext
from warcore.relay import Relay
from warcore.runner import ModelRunner
from warcore.scheduler import Limits, Scheduler, normal_loop, overlap_loop
from warcore.shared import SharedBuffers
from warcore.staging import StagingRing
from warcore.step import Step
from warcore.wiring import choose, read_engine_scope, read_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from warcore.config import EngineConfig
    from warcore.device import Device, Stream
    from warcore.model import Model
    from warcore.spec import SpecAlgorithm
    from warcore.wiring import Choices


@attrs.frozen(eq=False)
class Assembly:
    """The parts of a running engine."""

    device: Device
    model: Model
    choices: Choices
    limits: Limits
    scheduler: Scheduler
    loop: Callable[[Scheduler], None]

    def describe(self) -> dict[str, Any]:
        """Facts for people and scripts."""
        choices, limits = self.choices, self.limits
        return {
            "model": choices.ref,
            "backend": choices.backend_name,
            "device": str(choices.spec.device),
            "host": getattr(self.device, "mode", None),
            "dtype": str(choices.spec.dtype).removeprefix("torch."),
            "loop": self.loop.__name__.removesuffix("_loop"),
            "page_size": limits.page_size,
            "kv_pages": limits.pages,
            "context_length": limits.max_context,
            "max_running_requests": limits.max_running,
            "prefill_chunk": limits.prefill_chunk,
            "mixed": limits.mixed,
        }


def assemble(
    config: EngineConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    device: Device | None = None,
    algorithm: SpecAlgorithm | None = None,
    stagers: Mapping[str, object] | None = None,
) -> Assembly:
    """Wire, load and connect what `config` names.

    device: one that is open already, in place of what the config names; the assembly owns it.
    """
    device = device or open_device(config.device, config.host)
    try:
        return _assemble(config, device, progress, algorithm, stagers)
    except BaseException:
        device.close()
        raise


def _assemble(
    config: EngineConfig,
    device: Device,
    progress: Callable[[int, int], None] | None,
    algorithm: SpecAlgorithm | None,
    stagers: Mapping[str, object] | None,
) -> Assembly:
    choices = choose(config, device.torch_device)
    memory = plan_memory(config, choices)
    limits = Limits(
        max_running=config.max_running_requests,
        max_context=choices.spec.max_context,
        page_size=choices.spec.page_size,
        pages=memory.pages,
        prefill_chunk=config.prefill_chunk,
        mixed=config.mixed,
    )
    schedule, forward = device.stream("schedule"), device.stream("forward")
    shared = SharedBuffers(
        device,
        schedule,
        rows=limits.max_running,
        context=limits.max_context,
        page_size=limits.page_size,
    )
    model = _load_model(choices, progress)
    backend = _make_backend(choices, device, forward, shared, limits)
    engine_scope = read_engine_scope(algorithm, stagers)
    runner = ModelRunner(
        model,
        backend,
        read_scope(choices.backend_name, backend, algorithm),
        engine_scope,
        EventRing(device, depth=2),
        prefill_read_done=config.prefill_read_done,
    )
    relay = Relay(limits.max_running, device.torch_device)
    step = Step(
        runner,
        engine_scope,
        tables=shared.tables,
        relay=relay,
        done=EventRing(device, depth=3),
        max_tokens=limits.prefill_chunk + limits.max_running,
    )
    scheduler = Scheduler(
        device,
        schedule,
        forward,
        shared=shared,
        step=step,
        limits=limits,
        forced_coarse=config.fence == "coarse",
    )
    loop = overlap_loop if config.loop == "overlap" else normal_loop
    return Assembly(device, model, choices, limits, scheduler, loop)


def _load_model(choices: Choices, progress: Callable[[int, int], None] | None) -> Model:
    spec = choices.spec
    context = ModelContext(spec.device, spec.dtype, choices.model_options, progress)
    try:
        return choices.family.load(choices.ref, context)
    except WarcoreError:
        raise
    except Exception as error:
        raise PluginError(
            f"{choices.family.__name__} could not load {choices.ref}: {error!r}",
            next="run with --debug for the traceback",
        ) from error


def _make_backend(
    choices: Choices, device: Device, forward: Stream, shared: SharedBuffers, limits: Limits
) -> AttentionBackend:
    """The backend, built on the forward stream as everything else it will do."""
    statics = _Statics(device, forward)
    context = BackendContext(
        spec=choices.spec,
        max_batch=limits.max_running,
        max_tokens=limits.prefill_chunk + limits.max_running,
        shared=shared.tables,
        kv=_kv_pool(choices, limits.pages),
        graph=GraphKind.NONE,
        options=choices.backend_options,
        static=statics.static,
        stage=statics.stage,
    )
    try:
        backend: AttentionBackend = forward.submit(choices.backend, context).result()
    except WarcoreError:
        raise
    except Exception as error:
        raise PluginError(
            f"backend {choices.backend_name} could not be built: {error!r}",
            next="run with --debug for the traceback",
        ) from error
    return backend


def _kv_pool(choices: Choices, pages: int) -> list[dict[str, torch.Tensor]]:
    """kv[layer][name]: [pages + 1, *shape]; page 0 is the padding page.

    The other pages hold anything until their owner writes them: not touching them here leaves
    most of a large pool to the operating system until it is needed.
    """
    import torch

    specs = choices.backend.kv_cache(choices.spec)
    pool = [
        {
            name: torch.empty(
                (pages + 1, *spec.shape), dtype=spec.dtype, device=choices.spec.device
            )
            for name, spec in specs.items()
        }
        for _ in choices.info.layers
    ]
    for layer in pool:
        for memory in layer.values():
            memory[0].zero_()
    return pool


class _Statics:
    """Static buffers of one plugin: named, zeroed, with one address for life."""

    def __init__(self, device: Device, forward: Stream) -> None:
        self._device = device
        self._staging = StagingRing(device, forward)
        self._named: dict[str, torch.Tensor] = {}

    def static(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        import torch

        known = self._named.get(name)
        if known is None:
            known = torch.zeros(shape, dtype=dtype, device=self._device.torch_device)
            self._named[name] = known
        if tuple(known.shape) != tuple(shape) or known.dtype != dtype:
            raise PluginError(
                f"static {name!r} is {tuple(known.shape)} {known.dtype} and was asked for as "
                f"{tuple(shape)} {dtype}",
                next="ask for a static buffer once, as large as it will ever be",
            )
        return known

    def stage(self, name: str, values: Sequence[int]) -> torch.Tensor:
        known = self._named.get(name)
        if known is None:
            raise PluginError(
                f"no static buffer is called {name!r}", next="take it with ctx.static first"
            )
        if len(values) > known.numel():
            raise PluginError(
                f"static {name!r} holds {known.numel()} values and was given {len(values)}",
                next="ask for a static buffer once, as large as it will ever be",
            )
        front = known.view(-1)[: len(values)]
        front.copy_(self._staging.put(array("q", values)))
        return front
