"""Races of a whole engine: its own parts, its backend, and memory of the backend's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.device.operations import CORE, noting_origins
from warcore.samplingparams import SamplingParams
from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.hostcopies import HostCopies
from warcore.testkit.detectors.ownthreads import threads_started
from warcore.testkit.detectors.races import RaceDetector
from warcore.testkit.engines.answers import refuse_failures
from warcore.testkit.engines.enginetouches import watch_races, watched_tensors
from warcore.testkit.engines.insides import Insides
from warcore.testkit.outcome import Failure, Refuted, Unproven
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from warcore.engine import Engine
    from warcore.testkit.detectors.race import Race
    from warcore.testkit.engines.workload import Served, Workload


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
    threads = (
        f"what the thread touches that {place} starts" for place in dict.fromkeys(places.values())
    )
    return attrs.evolve(found, unseen=(*found.unseen, *threads))


def refuse_race(found: Watched, declared: str, cell: str, where: str | None = None) -> None:
    """Refuted if there is a race. where: the line to show; None: the first one of a plugin."""
    if found.races:
        race, more = found.races[0], len(found.races) - 1
        where = _line_of(race) if where is None else where
        raise Refuted(Failure(declared, str(race), where, ("happens-before",), cell, more))


def refuse_races(
    loads: Iterable[tuple[str, Workload]], declared: str, where: str | None = None
) -> None:
    """Refuted at the first race in an engine that serves one of `loads`, by cell, or if it fails.

    Unproven at the end if something was out of the detector's sight.
    """
    unseen: tuple[str, ...] = ()
    for cell, load in loads:
        with quiet_torch():
            found = races_of(load)
        refuse_race(found, declared, cell, where)
        refuse_failures(found.served, cell)
        unseen = unseen or found.unseen
    if unseen:
        raise Unproven(f"out of the detector's sight: {unseen[0]}")


def _line_of(race: Race) -> str:
    places = [each.place for each in (race.first, race.second) if each.place is not None]
    places.sort(key=lambda place: place.file.startswith(CORE))
    return str(places[0]) if places else ""


def _watched(engine: Engine, workload: Workload) -> Watched:
    insides, tensors = Insides(engine), watched_tensors(engine)
    detector = RaceDetector(insides.device)
    attribution = Attribution(tensors | _statics(insides), detector.see)
    copies = HostCopies(detector, _device_memory(insides, tensors.values()))
    served = None
    with watch_races(engine, attribution, copies, detector=detector):
        try:
            served = workload.serve(engine)
            insides.device.synchronize()
        except Exception:
            if not detector.races:
                raise
    unseen = (*map(str, attribution.addresses_taken), *attribution.missing)
    return Watched(detector.races, served, unseen)


def _statics(insides: Insides) -> dict[str, torch.Tensor]:
    """The static memory that its plugins have taken so far."""
    found: dict[str, torch.Tensor] = {}
    for number, (plugin, statics) in enumerate(insides.statics.items()):
        whose = f" of {plugin}" if number else ""
        found |= {f"static '{name}{whose}'": tensor for name, tensor in statics.named.items()}
    return found


def _device_memory(insides: Insides, fixed: Iterable[torch.Tensor]) -> Callable[[int], bool]:
    """Whether an address is that of memory which the core made for the device."""
    caches = [
        memory
        for runner in insides.runners
        for layer in runner.recorded.backend.ctx.kv
        for memory in layer.values()
    ]
    known = {tensor.untyped_storage().data_ptr() for tensor in (*fixed, *caches)}

    def is_device(address: int) -> bool:
        later = {tensor.untyped_storage().data_ptr() for tensor in _statics(insides).values()}
        return address in known or address in later

    return is_device
