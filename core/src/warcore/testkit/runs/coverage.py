"""Coverage: what a run could see, and what it says nothing about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.testkit.outcome import Outcome
from warcore.testkit.runs.check import LOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warcore.testkit.runs.results import Results

_ONLY_ON = {
    "page guard": "host",
    "happens-before": "host",
    "seeded schedules": "host",
    "Triton interpreter": "host",
    "pointer reachability": "cuda",
}
"""The device that a detector needs; the others work on each."""


@attrs.frozen
class Detector:
    """One detector, and whether it has looked."""

    name: str
    used: bool
    """Whether a check that ran has looked with it."""
    why_not: str | None
    """None: it works here."""


def detectors(results: Results) -> tuple[Detector, ...]:
    """The detectors of the kit, which of them have looked in this run, and which could not."""
    used = {name for result in results.results for name in result.detectors}
    found = []
    for name, lacking in results.platform["detectors"].items():
        needed = _ONLY_ON.get(name, results.subject.device)
        elsewhere = needed != results.subject.device
        why = f"{needed} device only" if elsewhere else lacking
        found.append(Detector(name, name in used, None if name in used else why))
    return tuple(found)


def not_covered(results: Results) -> Iterator[str]:
    """What the verdict does not hold for, in sentences."""
    subject = results.subject
    if subject.device == "host":
        yield "A CPU run says nothing about a plugin's separate CUDA kernels."
    else:
        yield (
            "What a CUDA kernel reads too late shows only in the output, or as an address in a "
            "captured step: a read that changes no output, in an eager step, is not seen. The map "
            "of windows is not overwritten: only addresses in it are looked for."
        )
    every = detectors(results)
    for detector in every:
        if detector.why_not is not None:
            yield f"The {detector.name} did not run: {detector.why_not}."
    idle = [each.name for each in every if not each.used and each.why_not is None]
    if idle:
        yield f"No check that ran had a use for: {', '.join(idle)}."
    yield from _stolen(results)
    yield from _beyond(results)
    yield from _left_out(results)
    here = next((result.here for result in results.results if result.here), "")
    if here:
        yield (
            f"Checks ran in this process, for {here}: what a crash or a hang of the plugin would "
            "have been was not tried."
        )
    roots = {result.after.check.name for result in results.results if result.after is not None}
    if LOADS in roots:
        yield "It was not loaded: nothing that it does was looked at."
    if any(result.outcome is Outcome.UNPROVEN for result in results.results):
        yield "Where a check could not run, nothing is known."


def _stolen(results: Results) -> Iterator[str]:
    """Who took the page guard's signal, and in which checks."""
    thieves: dict[str, list[str]] = {}
    for result in results.results:
        for thief in result.stolen:
            thieves.setdefault(thief, []).append(str(result.check))
    for thief, checks in thieves.items():
        yield (
            f"The page guard lost SIGSEGV to {thief} in {', '.join(checks)}, and had it again from "
            "the next step on: what came too late between was not seen."
        )


def _beyond(results: Results) -> Iterator[str]:
    """How far a grid of sizes went."""
    largest: dict[str, int] = {}
    for result in results.results:
        for what, size in result.largest.items():
            largest[what] = max(size, largest.get(what, 0))
    if largest:
        how = ", all in one thread of torch" if results.subject.device == "host" else ""
        yield (
            f"It was walked up to sequences of {largest['tokens']} tokens, batches of "
            f"{largest['requests']} requests and heads of {largest['head_dim']}{how}: of what "
            "takes another path beyond nothing is known."
        )


def _left_out(results: Results) -> Iterator[str]:
    """What was not asked for, or does not count."""
    subject, selection = results.subject, results.selection
    if results.interrupted:
        yield f"It was interrupted after {results.ran} of {len(selection.checks)} checks."
    if selection.pattern:
        left = selection.available - len(selection.checks)
        yield f"{left} of {selection.available} checks were left out (-k {selection.pattern})."
    if results.unmet:
        yield f"No check has a cell that is called {subject.cells!r} (--cell): none was walked."
    elif subject.cells:
        yield f"Of the grid only the cells called {subject.cells!r} were walked (--cell)."
    elif not subject.thorough and any(result.cells for result in results.results):
        yield "The default grid was walked; --all walks the whole of it."
    if subject.set_options:
        chosen = ", ".join(f"{key}={text}" for key, text in subject.set_options.items())
        yield f"It was checked with {chosen}: what it does without was not looked at."
    newer = sum(not result.counted for result in results.results)
    if newer:
        which = "1 check is" if newer == 1 else f"{newer} checks are"
        yield f"{which} newer than the plugin's contract {results.contract}, and not counted."
