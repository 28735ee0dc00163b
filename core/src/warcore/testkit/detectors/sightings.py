"""What was seen so far: every touch once, with how often and how far."""

from __future__ import annotations

import linecache
import threading
from typing import TYPE_CHECKING

import attrs

from warcore.testkit.access import Access, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from warcore.device.operations import Origin
    from warcore.testkit.access import Kind
    from warcore.testkit.detectors.ranges import Overlap


@attrs.frozen
class AddressTaken:
    """Somebody took the address of a watched buffer: what they do with it is out of sight."""

    buffer: str
    operation: str
    """`Tensor.data_ptr`."""
    place: Place
    stream: str = ""
    phase: str = ""

    def __str__(self) -> str:
        return f"{self.operation} takes the address of {self.buffer} at {self.place}"


@attrs.define
class Extent:
    """How often something was touched, and from which byte to which."""

    start: int
    stop: int
    count: int = 1

    def grow(self, start: int, stop: int) -> None:
        """Once more, there."""
        self.start, self.stop = min(self.start, start), max(self.stop, stop)
        self.count += 1


@attrs.frozen
class Work:
    """Whose work it is; empty texts for the host, and where no phase was told."""

    stream: str = ""
    phase: str = ""


class Sightings:
    """Touches and addresses taken, from any thread.

    seen_by: the detector. tell: hears of each touch as it comes.
    """

    def __init__(self, seen_by: str, tell: Callable[[Access], None] | None) -> None:
        self._seen_by = frozenset({seen_by})
        self._tell = tell
        self._lock = threading.Lock()
        self._touches: dict[tuple[str, Kind, Origin, Work], Extent] = {}
        self._addresses: dict[tuple[str, Origin, Work], None] = {}

    def touched(self, seen: Iterable[tuple[Overlap, Kind]], origin: Origin, work: Work) -> None:
        """One call touched all of `seen`: it counts once for each buffer and kind."""
        once: dict[tuple[str, Kind], tuple[int, int]] = {}
        for overlap, kind in seen:
            start, stop = once.get((overlap.buffer, kind), (overlap.start, overlap.stop))
            once[overlap.buffer, kind] = min(start, overlap.start), max(stop, overlap.stop)
        with self._lock:
            for (buffer, kind), (start, stop) in once.items():
                known = self._touches.get((buffer, kind, origin, work))
                if known is None:
                    self._touches[buffer, kind, origin, work] = Extent(start, stop)
                else:
                    known.grow(start, stop)
        if self._tell is not None:
            for (buffer, kind), (start, stop) in once.items():
                self._tell(self._access(buffer, kind, origin, work, Extent(start, stop)))

    def address_taken(self, buffer: str, origin: Origin, work: Work) -> None:
        """Its address is in other hands."""
        with self._lock:
            self._addresses[buffer, origin, work] = None

    def accesses(self) -> list[Access]:
        """The host's touches and then each stream's by name, in the order of their first sighting.

        What streams did at the same time has no order that another run would repeat.
        """
        with self._lock:
            touches = list(self._touches.items())
        found = [self._access(*what, extent) for what, extent in touches]
        return sorted(found, key=lambda access: access.stream)

    def addresses(self) -> list[AddressTaken]:
        """The addresses taken, in the same order."""
        with self._lock:
            taken = list(self._addresses)
        found = [
            AddressTaken(buffer, origin.operation, _place(origin), work.stream, work.phase)
            for buffer, origin, work in taken
        ]
        return sorted(found, key=lambda each: each.stream)

    def _access(
        self, buffer: str, kind: Kind, origin: Origin, work: Work, extent: Extent
    ) -> Access:
        return Access(
            buffer=buffer,
            kind=kind,
            start=extent.start,
            stop=extent.stop,
            stream=work.stream,
            phase=work.phase,
            operation=origin.operation,
            place=_place(origin),
            seen_by=self._seen_by,
            count=extent.count,
        )


def _place(origin: Origin) -> Place:
    text = linecache.getline(origin.file, origin.line).strip()
    return Place(origin.file, origin.line, text)
