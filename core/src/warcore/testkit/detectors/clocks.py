"""Vector clocks: what is ordered whatever the timing, and what was only lucky."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    Actor: TypeAlias = Hashable
    Clock: TypeAlias = Mapping[Actor, int]


class Clocks:
    """What each actor knows of the past of the others.

    An actor does one thing after another: a stream, the host. Its own time is counted in epochs,
    from 1; an epoch ends when the actor tells somebody of its past. So whoever was told of epoch n
    comes after all that the actor did in epochs up to n, and knows nothing of the next one.

    Source of the rule: Lamport's happened-before, kept as vector clocks (Fidge; Mattern).
    """

    def __init__(self) -> None:
        self._known: dict[Actor, dict[Actor, int]] = {}

    @property
    def actors(self) -> list[Actor]:
        """Everybody who did, told or heard anything."""
        return list(self._known)

    def epoch(self, actor: Actor) -> int:
        """The epoch of what `actor` does now."""
        return self._of(actor)[actor]

    def release(self, actor: Actor) -> Clock:
        """All that `actor` did and heard of so far, for whoever goes on after it."""
        known = self._of(actor)
        told = known.copy()
        known[actor] += 1
        return told

    def acquire(self, actor: Actor, told: Clock) -> None:
        """From here on `actor` comes after what it was told."""
        known = self._of(actor)
        for other, epoch in told.items():
            if known.get(other, 0) < epoch:
                known[other] = epoch

    def is_after(self, actor: Actor, other: Actor, epoch: int) -> bool:
        """Whether what `actor` does now comes after what `other` did in that epoch."""
        return self._of(actor).get(other, 0) >= epoch

    def settled(self, live: Iterable[Actor]) -> Clock:
        """Up to which epoch each actor's past is behind all of `live`."""
        clocks = [self._of(actor) for actor in live]
        return {other: min(clock.get(other, 0) for clock in clocks) for other in self._known}

    def _of(self, actor: Actor) -> dict[Actor, int]:
        known = self._known.get(actor)
        if known is None:
            known = self._known[actor] = {actor: 1}
        return known
