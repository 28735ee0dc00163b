"""What a recorder notes while a run goes on: works, calls, points, one sheet for each step.

Times are stamps of the recorder's clock; `timeline` reads them when the run is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from warcore.device import Stream
    from warcore.launch import Launch
    from warcore.tracing.clock import Stamp


@attrs.frozen(eq=False)
class Point:
    """A record, or a wait for one, at a position of a stream or of the host."""

    kind: Literal["record", "wait"]
    event: str
    """Names the event, within this trace."""
    generation: int
    at: Stamp

    @property
    def key(self) -> tuple[str, int]:
        """What a record and the waits for it have in common."""
        return self.event, self.generation


@attrs.define(eq=False)
class Work:
    """One function submitted to a stream, or one call of the host."""

    stream: Stream | None
    """None: the host."""
    what: str
    """The function's name."""
    submitted: Stamp
    """When the host submitted it; of a call, its begin."""
    begin: Stamp = None
    end: Stamp = None
    failed: bool = False
    phases: list[tuple[str, Stamp]] = attrs.field(factory=list)
    """Names and begins; each ends where the next begins."""
    points: list[Point] = attrs.field(factory=list)


@attrs.frozen
class Verdict:
    """Where the fence of one step fell, and why."""

    reason: str
    """A value of FenceReason; "none" in the normal loop."""
    detail: str = ""
    next: str = ""
    """What would make it fine."""
    error: str = ""
    """What the step failed with."""


@attrs.define(eq=False)
class Sheet:
    """What was noted of one step."""

    number: int
    """Counted from 1, from the first step that the recorder saw."""
    mode: str
    requests: tuple[int, ...]
    """The numbers of the requests in it."""
    tokens: int
    works: list[Work] = attrs.field(factory=list)
    loose: list[tuple[Stream | None, Point]] = attrs.field(factory=list)
    """Points at positions of streams where no work was running."""
    launch: Launch | None = None
    """Until its results are taken: then the verdict is final."""
    verdict: Verdict = Verdict("none")
