"""The accesses that something still to come might conflict with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from warcore.testkit.access import Access
    from warcore.testkit.detectors.clocks import Actor, Clock, Clocks


@attrs.frozen(eq=False)
class Touch:
    """An access, and when it was in its actor's time."""

    actor: Actor
    epoch: int
    access: Access
    turn: tuple[int, int]
    """Its place in the order of submission, which no timing changes."""
    work: str
    """What made it, in words."""
    base: int
    """Where the buffer begins in the space of addresses that all of its name share."""
    low: int
    """The first byte touched, in that space."""
    high: int
    """One past the last."""

    @property
    def origin(self) -> Hashable:
        """What touches have in common that one line of a report is about."""
        access = self.access
        return self.actor, access.kind, access.phase, access.operation, access.place

    def outside(self, other: Touch) -> Iterator[Touch]:
        """The parts of it that `other` does not touch."""
        if not self.overlaps(other):
            yield self
            return
        if self.low < other.low:
            yield attrs.evolve(self, high=other.low)
        if self.high > other.high:
            yield attrs.evolve(self, low=other.high)

    def overlaps(self, other: Touch) -> bool:
        """Whether they touch a common byte."""
        return self.low < other.high and other.low < self.high


class History:
    """Finds, for each new touch, the earlier ones that nothing orders before it.

    It is bounded whatever runs, by two rules that lose no pair of origins:

    - A touch is cut back where a later one of the same origin touches the same bytes. Both have one
      actor, so the earlier comes first, and whoever is not after it is not after the later one.
      So an origin keeps each byte once; origins are lines of a program times streams and phases.
    - `forget` drops what is behind everybody who can still act.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._buffers: dict[str, dict[Hashable, list[Touch]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, touch: Touch) -> list[Touch]:
        """Keep `touch`; the earlier touches that are in a race with it."""
        groups = self._buffers.setdefault(touch.access.buffer, {})
        found = [
            earlier
            for group in groups.values()
            if self._conflict(group[0], touch)
            for earlier in group
            if earlier.overlaps(touch)
            and not self._clocks.is_after(touch.actor, earlier.actor, earlier.epoch)
        ]
        kept = groups.get(touch.origin, ())
        pieces = [piece for earlier in kept for piece in earlier.outside(touch)]
        groups[touch.origin] = [*pieces, touch]
        self._count += len(pieces) + 1 - len(kept)
        return found

    def forget(self, settled: Clock) -> None:
        """Drop what lies in the settled epochs: nothing can be in a race with it any more."""
        for buffer, groups in list(self._buffers.items()):
            for origin, group in list(groups.items()):
                groups[origin] = [t for t in group if settled.get(t.actor, 0) < t.epoch]
                if not groups[origin]:
                    del groups[origin]
            if not groups:
                del self._buffers[buffer]
        self._count = sum(len(g) for groups in self._buffers.values() for g in groups.values())

    @staticmethod
    def _conflict(one: Touch, other: Touch) -> bool:
        return one.actor != other.actor and "write" in {one.access.kind, other.access.kind}
