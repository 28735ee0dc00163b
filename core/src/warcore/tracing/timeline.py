"""A timeline: who was busy with what, when; the records, the waits, and the arrows between them."""

from __future__ import annotations

from typing import Final, Literal

import attrs

HOST = "host"
FENCE, INPUTS, RESULTS, EVENT = "fence", "inputs", "results", "event"
"""Kinds of arrows: what the next write waits for, what a forward waits for, what the host does."""


@attrs.frozen
class Slice:
    """Somebody was busy from `begin` to `end`, in nanoseconds."""

    lane: str
    kind: str
    """Host: prepare, launch, barrier, collect. Streams: copy, write, wait, forward, work. Inside
    another slice: phase; on the host, wait."""
    name: str
    """For a phase its name, for other work its function."""
    begin: int
    end: int
    step: int
    submitted: int
    """When the host submitted it; of what the host does, the begin."""
    inside: bool = False
    """Whether it is a part of another slice of its lane."""
    failed: bool = False


@attrs.frozen
class Mark:
    """A record or a wait at a moment of a lane."""

    lane: str
    kind: Literal["record", "wait"]
    event: str
    generation: int
    at: int
    step: int


@attrs.frozen
class Arrow:
    """From a record to a wait for it. Both ends lie within a slice of their lane."""

    kind: str
    event: str
    generation: int
    source: str
    begin: int
    target: str
    end: int
    step: int
    """Of the wait."""


@attrs.frozen
class Step:
    """What there is to say of one step."""

    number: int
    mode: str
    runs_as: str | None
    """eager or graph; None where no phase told."""
    requests: tuple[int, ...]
    tokens: int
    fence: str
    detail: str
    next: str
    error: str
    begin: int | None
    end: int | None
    """Of its forward, where that was seen."""
    fence_at: int | None
    """When the record was passed that its barrier waited for."""
    waited: int
    """How long a write that was submitted already stood behind its barrier, in nanoseconds."""


@attrs.frozen
class Timeline:
    """The steps that were kept, in nanoseconds from the first of anything."""

    device: str
    clock: str
    lanes: tuple[str, ...]
    """The host, then the streams that did anything, in the order in which they were made."""
    slices: tuple[Slice, ...]
    """By lane and begin; a part comes after what it is a part of."""
    marks: tuple[Mark, ...]
    arrows: tuple[Arrow, ...]
    steps: tuple[Step, ...]
    dropped: int
    """How many steps before these were forgotten."""

    @property
    def end(self) -> int:
        """When the last slice ends."""
        return max((s.end for s in self.slices), default=0)


_TITLES: Final = {
    "copy": "copy inputs",
    "write": "write tables",
    "wait": "wait for the fence",
}


def title(each: Slice, step: Step) -> str:
    """What a slice of `step` is called where it is drawn."""
    if each.inside:
        return each.name
    if each.kind == "forward":
        how = "" if step.runs_as is None else f", {step.runs_as}"
        return f"{step.mode} {each.step} ({fence_word(step)}{how})"
    return f"{each.name if each.kind == 'work' else _TITLES.get(each.kind, each.kind)} {each.step}"


def fence_word(step: Step) -> str:
    """fine, coarse, failed, or unfenced: what a colour stands for."""
    if step.error:
        return "failed"
    return {"fine": "fine", "none": "unfenced"}.get(step.fence, "coarse")
