"""Which detectors have looked in this process: a report lists those, and not what might have."""

from __future__ import annotations

from typing import Final, Literal

Name = Literal[
    "page guard",
    "happens-before",
    "attribution",
    "in-order poison",
    "event position",
    "seeded schedules",
    "pointer reachability",
    "Triton interpreter",
]

_used: Final[dict[Name, None]] = {}


def note(name: Name) -> None:
    """Say that this detector looks now."""
    _used[name] = None


def forget() -> None:
    """From here on as if none had looked yet."""
    _used.clear()


def used() -> tuple[Name, ...]:
    """Those that have looked, the first one first."""
    return tuple(_used)
