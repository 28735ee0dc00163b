"""The pictures of docs/hazards.md: each hazard happens, in virtual time, and is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import hazard_plugins as plugins
from panels import Panel
from timeline import note, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFILLS: Final = {"prompts": [range(1, 9)] * 9, "prefill_chunk": 8, "steps": 2}
"""Requests whose prompts fill a step each."""
END: Final = "declared end"
SPECULATES: Final = {"spec_algo": plugins.LooksBehind, "steps": 16}
GRAPHS: Final = {"graph_runner": plugins.Unbroken}


@attrs.frozen
class Hazard:
    """One hazard: what its picture shows, and how that comes about."""

    name: str
    """Of the pictures, and of the section: `late-read`."""
    alt: str
    panels: Callable[[], Iterator[Panel]]


def _peeks(device: Any, core: Any) -> None:
    """Let the schedule stream look at what the running forward makes, behind each barrier."""
    barrier = core.barrier
    schedule = next(stream for stream in device.streams if stream.name == "schedule")

    def peek() -> None:
        note(device, "peek")
        device.spend(plugins.SHORT)

    def looks(launch: Any) -> None:
        barrier(launch)
        schedule.submit(peek)

    core.barrier = looks


def _fills(device: Any, core: Any) -> None:
    """Let the host write its buffer for the next step before it launches that."""
    launch = core.launch

    def fills(entries: Any, **named: Any) -> Any:
        note(device, "fills")
        device.spend(plugins.SHORT)
        note(device, "submits")
        return launch(entries, **named)

    core.launch = fills


def _waits(device: Any, core: Any) -> None:
    """Let each launch last until its forward has said a number to the host."""
    launch = core.launch

    def asks(entries: Any, **named: Any) -> Any:
        made = launch(entries, **named)
        note(device, "stall")
        device.synchronize()
        return made

    core.launch = asks


def _late(title: str, *given: Any, **named: Any) -> Callable[[], Iterator[Panel]]:
    """One run in which something comes too late, or too early."""
    panel = {name: named.pop(name) for name in ("clash", "says") if name in named}

    def panels() -> Iterator[Panel]:
        yield Panel(title, run(*given, **named), "alarm", ends=END, **panel)

    return panels


def _slow(title: str, other: str, *given: Any, **named: Any) -> Callable[[], Iterator[Panel]]:
    """One run that waits too long, and below it the one that need not."""

    def panels() -> Iterator[Panel]:
        yield Panel(title, run(*given, **named), "alarm", ends=END)
        yield Panel(other, run(), "good", ends=END)

    return panels


def _hidden() -> Iterator[Panel]:
    for title, fence, says, colour in (
        ("Coarse fence: right, by accident", "coarse", "", "good"),
        ("Fine fence: looked at before it is made", "declared", "an old value is read", "alarm"),
    ):
        timeline = run(plugins.MakesLengths, fence, around=_peeks)
        yield Panel(title, timeline, colour, clash=("make", "peek", 0), says=says, ends=END)


HAZARDS: Final = (
    Hazard(
        "late-read",
        "Each step reads the tables, its declared end passes, and its last layer reads once more, "
        "after the schedule stream has written the tables of the next step.",
        _late("Declared before the layers; the last layer looks once more", plugins.InTheLastLayer),
    ),
    Hazard(
        "late-gather",
        "The declared end of each step lies before its replay; the gather in the graph is still "
        "reading when the schedule stream writes the tables of the next step.",
        _late("Declared before the replay; the graph gathers", plugins.InTheGraph, **GRAPHS),
    ),
    Hazard(
        "alias",
        "The metadata of each step read nothing; every layer reads the table through a view, "
        "behind the declared end and behind the write for the next step.",
        _late("A view instead of a copy", plugins.InTheLayers),
    ),
    Hazard(
        "late-sometimes",
        "Step 3 reads before its declared end only. Steps 4 and 5 read once more in their last "
        "layer, behind the write for the next step.",
        _late("Only where a request is long", plugins.WhenLong),
    ),
    Hazard(
        "early-marker",
        "In each replay the marker fires before the metadata read the tables; the schedule stream "
        "writes the tables of the next step while they do.",
        _late(
            "A marker before the metadata",
            plugins.SaysInReplay,
            graph_runner=plugins.MarksFirst,
        ),
    ),
    Hazard(
        "wrapper",
        "The declared end is the one that the wrapper inherits, after the metadata. What it wraps "
        "reads in its layers, behind the write for the next step.",
        _late("Fenced by the answer that the wrapper inherits", plugins.Wrapper),
    ),
    Hazard(
        "snapshot",
        "In each prefill the declared end comes with the snapshot; the first layer gathers after "
        "it, while the schedule stream writes the tables of the next step.",
        _late("The snapshot says that all is gathered", plugins.Snapshot, **PREFILLS),
    ),
    Hazard(
        "says-true",
        "In each prefill the declared end comes with the target's metadata, for the stager has "
        "said that all is copied; the draft model looks its rows up behind the target's layers, "
        "after the write for the next step.",
        _late(
            "The stager says True, and the draft reads",
            spec_algo=plugins.Drafts,
            stagers=(plugins.SaysTrue,),
            **PREFILLS,
        ),
    ),
    Hazard(
        "behind-the-owner",
        "The declared end of each step lies in the target's verify; the algorithm looks its rows "
        "up once more behind it, after the schedule stream has written the tables of the next "
        "step.",
        _late("The algorithm reads behind the phase that ends the reads", **SPECULATES),
    ),
    Hazard(
        "own-stream",
        "A stream of the backend's own reads the tables. The declared end lies on the forward "
        "stream, which does not wait for it; the write for the next step comes in between.",
        _late("The gather runs on a stream of its own", plugins.OwnStream),
    ),
    Hazard(
        "hidden-read",
        "Above, a coarse fence: the schedule stream looks at a result after the whole forward. "
        "Below, a fine one: it looks when the reads have ended, before the forward makes it.",
        _hidden,
    ),
    Hazard(
        "refill",
        "The host fills a buffer for the next step while the forward stream still copies the "
        "values of this step from it.",
        _late(
            "Host memory without a fence of its own",
            plugins.OwnBuffer,
            around=_fills,
            clash=("sends", "fills", 1),
            says="filled while it is copied",
        ),
    ),
    Hazard(
        "early-write",
        "Each forward writes the shared tables in its last layer, after the schedule stream has "
        "written them for the next step.",
        _late(
            "A forward that writes what belongs to the scheduler",
            plugins.Normalises,
            clash=("touch", "write", 1),
            says="written by both",
        ),
    ),
    Hazard(
        "rebound",
        "Each step gathers its rows into a new tensor; its replay reads the one that was there "
        "when the graph was captured.",
        _late(
            "A graph keeps the address that it was captured with",
            plugins.Rebinds,
            says="the rows are not this step's",
            **GRAPHS,
        ),
    ),
    Hazard(
        "kept",
        "The first step of a request looks its rows up. The steps after it go by what was found "
        "then, though the schedule stream has written new pages into the table before each.",
        _late(
            "Metadata that are kept while the rows are the same",
            plugins.Keeps,
            says="the pages are of an earlier step",
        ),
    ),
    Hazard(
        "host-read",
        "Above, the host waits in each launch until the forward is done, and the forward stream "
        "idles while the next step is prepared. Below, it never idles.",
        _slow("A value goes to the host in each step", "It stays on the device", around=_waits),
    ),
    Hazard(
        "cautious",
        "Above, the end of the step is declared: the next write waits for it, and the forward "
        "stream idles meanwhile. Below, the last read is declared, and it never idles.",
        _slow("Declared: the end of the step", "Declared: the last read", plugins.SaysPostReplay),
    ),
)


def panels() -> dict[str, tuple[str, list[Panel]]]:
    """What each picture says in words, and its panels."""
    return {f"hazard-{each.name}": (each.alt, list(each.panels())) for each in HAZARDS}
