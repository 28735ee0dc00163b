"""Race: two accesses of one buffer that nothing orders, told as a report tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Hashable

    from warcore.testkit.access import Access
    from warcore.testkit.detectors.history import Touch

RaceKind = Literal["RAW", "WAR", "WAW"]

_KINDS: dict[tuple[str, str], RaceKind] = {
    ("write", "read"): "RAW",
    ("read", "write"): "WAR",
    ("write", "write"): "WAW",
}


@attrs.frozen
class Race:
    """Two accesses of one buffer, at least one a write, that nothing orders.

    First and second are in the order of submission, which is the same in every schedule: in a run
    that hides the race, and in one that shows it.
    """

    buffer: str
    kind: RaceKind
    """What the program meant: RAW (the second reads what the first wrote), WAR or WAW."""
    start: int
    """The first byte that both touched, counted from the buffer's start."""
    stop: int
    """One past the last."""
    first: Access
    second: Access
    first_work: str
    """Whose the first access was: the work, its step and its stream, or the host."""
    second_work: str
    count: int
    """How many such pairs were seen, of the same two origins; this is the first."""

    @property
    def streams(self) -> tuple[str, str]:
        """Where the two were; empty for the host."""
        return self.first.stream, self.second.stream

    @property
    def missing(self) -> str:
        """The order that is missing, as a sentence."""
        return (
            f"nothing orders the {_told(self.second, self.second_work)} after the "
            f"{_told(self.first, self.first_work)}"
        )

    def __str__(self) -> str:
        more = f" ({self.count} times)" if self.count > 1 else ""
        where = f"{self.buffer}[{self.start}:{self.stop}]"
        return f"{self.kind} on {where}: {self.missing}{more}"


class Races:
    """The races found so far, each pair of origins once."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Race] = {}

    def add(self, one: Touch, other: Touch) -> None:
        """Two touches that nothing orders, the one seen earlier first."""
        first, second = (one, other) if one.turn <= other.turn else (other, one)
        key = first.access.buffer, first.origin, second.origin
        race = self._found.get(key)
        self._found[key] = (
            _race(first, second) if race is None else attrs.evolve(race, count=race.count + 1)
        )

    def found(self) -> tuple[Race, ...]:
        """All of them, the most frequent first."""
        return tuple(sorted(self._found.values(), key=lambda race: -race.count))


def _race(first: Touch, second: Touch) -> Race:
    return Race(
        buffer=first.access.buffer,
        kind=_KINDS[first.access.kind, second.access.kind],
        start=max(first.low, second.low) - first.base,
        stop=min(first.high, second.high) - first.base,
        first=first.access,
        second=second.access,
        first_work=first.work,
        second_work=second.work,
        count=1,
    )


def _told(access: Access, work: str) -> str:
    in_phase = f" in phase {access.phase}" if access.phase else ""
    named = access.operation and access.operation not in work
    operation = f" by {access.operation}" if named else ""
    place = f" at {access.place}" if access.place is not None else ""
    return f"{access.kind} of {work}{in_phase}{operation}{place}"
