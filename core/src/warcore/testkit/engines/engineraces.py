"""Races of a whole engine: its own parts, its backend, and memory of the backend's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from warcore.device.operations import CORE, noting_origins
from warcore.samplingparams import SamplingParams
from warcore.testkit.detectors.bystanders import Bystanders
from warcore.testkit.detectors.guard import PageGuard, supported
from warcore.testkit.detectors.ownthreads import threads_started
from warcore.testkit.detectors.races import RaceDetector
from warcore.testkit.engines.answers import refuse_failures
from warcore.testkit.engines.insides import Insides
from warcore.testkit.engines.racesight import RaceSight, in_pages_of
from warcore.testkit.outcome import Failure, Refuted, Unproven
from warcore.testkit.stands.walk import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from warcore.engine import Engine
    from warcore.testkit.access import Place
    from warcore.testkit.detectors.race import Race
    from warcore.testkit.detectors.sightings import AddressTaken
    from warcore.testkit.engines.workload import Served, Workload


REMEDY = "what is submitted to a stream, for which the forward stream waits, is in sight"


@attrs.frozen
class Watched:
    """What one run of a workload has shown."""

    races: tuple[Race, ...]
    served: Served | None
    """None: the engine gave up on what a race had destroyed."""
    unseen: tuple[str, ...]
    """What was out of the detector's sight."""
    threads: tuple[Place, ...] = ()
    """Where threads are started: when they touch something, the detector cannot see."""
    strays: tuple[str, ...] = ()
    """What the page guard saw them do."""
    by_address: tuple[AddressTaken, ...] = ()
    """The addresses through which only the page guard sees."""


def races_of(workload: Workload, host: str = "inline", **fields: Any) -> Watched:
    """Let an engine serve `workload`, and find what nothing orders. One run tells for all timings.

    Where the page guard works, whoever has an address of the tables or of static memory is seen
    too; a second run then looks for what is written through it behind a read of the same page.

    Raises what a step raises, unless a race explains it.
    """
    if workload.device != "host" or host != "inline" or supported() is not None:
        return _unguarded(workload, host, fields)
    found = _guarded(workload, fields, writes_only=False)
    if not found.races and found.served is not None and found.served.error:
        # A system call that is handed closed memory fails. What else it is, shows once more.
        return _unguarded(workload, host, fields)
    if found.by_address and not found.races:
        again = _guarded(workload, fields, writes_only=True)
        found = attrs.evolve(found, races=again.races)
    if found.threads and not found.races:
        touches = (*found.strays, *_touches_of_threads(workload, fields))
        at_any_time = f"a thread that {found.threads[0]} starts may do it at any time"
        unseen = (f"{touch}: {at_any_time}; {REMEDY}" for touch in touches)
        found = attrs.evolve(found, unseen=(*found.unseen, *unseen))
    return found


def refuse_race(found: Watched, declared: str, cell: str, where: str | None = None) -> None:
    """Refuted if there is a race. where: the line to show; None: the first one of a plugin."""
    if found.races:
        race, more = found.races[0], len(found.races) - 1
        where = _line_of(found) if where is None else where
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


def _line_of(found: Watched) -> str:
    """The first line of a plugin; of a touch without one, the line that took the address."""
    race = found.races[0]
    places = [each.place for each in (race.first, race.second) if each.place is not None]
    if len(places) < 2:
        places[:0] = [taken.place for taken in found.by_address if taken.buffer == race.buffer]
    places.sort(key=lambda place: place.file.startswith(CORE))
    return str(places[0]) if places else ""


def _unguarded(workload: Workload, host: str, fields: dict[str, Any]) -> Watched:
    found = _watched(lambda: workload.engine(host, **fields), workload)
    return attrs.evolve(found, unseen=(*found.unseen, *map(_of_thread, found.threads)))


def _guarded(workload: Workload, fields: dict[str, Any], *, writes_only: bool) -> Watched:
    with PageGuard() as guard, in_pages_of(guard) as device:
        return _watched(
            lambda: workload.engine(device=device, **fields),
            workload,
            guard,
            writes_only=writes_only,
        )


def _watched(
    opened: Callable[[], AbstractContextManager[Engine]],
    workload: Workload,
    guard: PageGuard | None = None,
    *,
    writes_only: bool = False,
) -> Watched:
    served = None
    with threads_started() as places, noting_origins(), opened() as engine:
        # Static memory that is taken in the first step is watched from the second on.
        engine.generate([workload.requests[0].prompt], SamplingParams(max_new_tokens=2), raw=True)
        device = Insides(engine).device
        detector = RaceDetector(device)
        sight = RaceSight(engine, detector, guard, writes_only=writes_only)
        with sight.watching():
            try:
                served = workload.serve(engine)
                device.synchronize()
            except Exception:
                if not detector.races:
                    raise
    return Watched(
        races=_told(detector.races),
        served=served,
        unseen=sight.unseen,
        threads=tuple(dict.fromkeys(places.values())),
        strays=tuple(dict.fromkeys(f"a touch of {fault.buffer}" for fault in sight.strays)),
        by_address=sight.by_address,
    )


def _touches_of_threads(workload: Workload, fields: dict[str, Any]) -> tuple[str, ...]:
    """What could let threads of a plugin's own touch the tables or static memory, in one more run.

    If nothing can, nothing is to be ordered, whenever they run.
    """
    with (
        PageGuard() as guard,
        in_pages_of(guard) as device,
        Bystanders(guard) as bystanders,
        workload.engine(device=device, **fields) as engine,
    ):
        workload.serve(engine)
    return bystanders.touches


def _told(races: tuple[Race, ...]) -> tuple[Race, ...]:
    """Those that attribution has seen; those of the guard alone, which has no line, if none is."""
    named = [race for race in races if "guard" not in race.first.seen_by | race.second.seen_by]
    return tuple(named) or races


def _of_thread(place: Place) -> str:
    return f"what the thread touches that {place} starts: {REMEDY}"
