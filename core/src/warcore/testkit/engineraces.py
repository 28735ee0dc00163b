"""Races of a whole engine: its own parts, its backend, and memory of the backend's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.device.operations import noting_origins
from warcore.samplingparams import SamplingParams
from warcore.statics import Statics
from warcore.testkit.attribution import Attribution
from warcore.testkit.enginetouches import watch_races, watched_tensors
from warcore.testkit.hostcopies import HostCopies
from warcore.testkit.ownthreads import threads_started
from warcore.testkit.races import RaceDetector

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore.engine import Engine
    from warcore.testkit.race import Race
    from warcore.testkit.workload import Served, Workload


@attrs.frozen
class Watched:
    """What one run of a workload has shown."""

    races: tuple[Race, ...]
    served: Served | None
    """None: the engine gave up on what a race had destroyed."""
    unseen: tuple[str, ...]
    """What was out of the detector's sight."""


def races_of(workload: Workload, host: str = "inline", **fields: Any) -> Watched:
    """Let an engine serve `workload`, and find what nothing orders. One run tells for all timings.

    Raises what a step raises, unless a race explains it.
    """
    with threads_started() as places, noting_origins(), workload.engine(host, **fields) as engine:
        # Static memory that is taken in the first step is watched from the second on.
        engine.generate([workload.requests[0].prompt], SamplingParams(max_new_tokens=2), raw=True)
        found = _watched(engine, workload)
    threads = (f"what the thread touches that {place} starts" for place in dict.fromkeys(places))
    return attrs.evolve(found, unseen=(*found.unseen, *threads))


def _watched(engine: Engine, workload: Workload) -> Watched:
    device = engine._assembly.device  # noqa: SLF001 - the kit looks inside on purpose
    detector = RaceDetector(device)
    attribution = Attribution(watched_tensors(engine) | _statics(engine), detector.see)
    copies = HostCopies(detector, _device_memory(engine))
    served = None
    with watch_races(engine, attribution, copies, detector=detector):
        try:
            served = workload.serve(engine)
            device.synchronize()
        except Exception:
            if not detector.races:
                raise
    unseen = (*map(str, attribution.addresses_taken), *attribution.missing)
    return Watched(detector.races, served, unseen)


def _statics(engine: Engine) -> dict[str, torch.Tensor]:
    """The static memory that its plugins have taken so far."""
    return {f"static {name!r}": tensor for name, tensor in _named(engine).items()}


def _named(engine: Engine) -> dict[str, torch.Tensor]:
    assembly: Any = engine._assembly  # noqa: SLF001 - as above
    target, *drafts = assembly.scheduler.launcher._step._runners  # noqa: SLF001 - as above
    contexts = [("", target._backend.ctx)]  # noqa: SLF001
    if target.captures is not None:
        contexts.append(("", target.captures._runner.ctx))  # noqa: SLF001
    for number, draft in enumerate(drafts, 1):
        contexts.append((f" of draft {number}", draft._backend.ctx))  # noqa: SLF001
    for plugin, stage in assembly.wired.engine_scope.stagers:
        context = getattr(getattr(stage, "__self__", None), "ctx", None)
        contexts.append((f" of {plugin}", context))
    found: dict[str, torch.Tensor] = {}
    for whose, ctx in contexts:
        statics = getattr(getattr(ctx, "static", None), "__self__", None)
        named = statics._named if isinstance(statics, Statics) else {}  # noqa: SLF001
        found |= {f"{name}{whose}": tensor for name, tensor in named.items()}
    return found


def _device_memory(engine: Engine) -> Callable[[int], bool]:
    """Whether an address is that of memory which the core made for the device."""
    step: Any = engine._assembly.scheduler.launcher._step  # noqa: SLF001 - as above
    fixed = [*watched_tensors(engine).values()]
    for runner in step._runners:  # noqa: SLF001 - as above
        fixed += [memory for layer in runner._backend.ctx.kv for memory in layer.values()]  # noqa: SLF001
    known = {tensor.untyped_storage().data_ptr() for tensor in fixed}

    def is_device(address: int) -> bool:
        later = {tensor.untyped_storage().data_ptr() for tensor in _named(engine).values()}
        return address in known or address in later

    return is_device
