"""Access: one touch of a watched buffer, as far as the detectors could tell."""

from __future__ import annotations

from typing import Literal

import attrs

Kind = Literal["read", "write"]


@attrs.frozen
class Place:
    """The line of somebody's code from which a touch came."""

    file: str
    line: int
    text: str
    """The source line, stripped; empty if it cannot be read."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


@attrs.frozen
class Access:
    """Somebody read or wrote a watched buffer."""

    buffer: str
    """Its name, as `observe` was given it."""
    kind: Kind
    """`read` or `write`."""
    start: int
    """The first byte touched, counted from the buffer's start."""
    stop: int
    """One past the last byte; a detector that knows pages only gives the page."""
    stream: str = ""
    """Whose work it was; empty for the host, and in an observation for the observing thread."""
    phase: str = ""
    """The phase of the step, where the core told one; in an observation the last mark."""
    operation: str = ""
    """`aten.index_select` or the kernel's name; empty if no detector could name it."""
    place: Place | None = None
    """The line it came from, with `file`, `line` and `text`; None if no detector could tell."""
    seen_by: frozenset[str] = frozenset()
    """The detectors that saw it: guard, attribution, poison."""
    count: int = attrs.field(default=1, eq=False)
    """How often, by the count of who noted it; start and stop then hold all of them."""
