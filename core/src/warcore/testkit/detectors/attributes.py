"""What a plugin's object holds: in its attributes, in lists, tuples and dicts there, and in objects
of its own package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def held(owner: object) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that `owner` holds, one object of its own package deep."""
    package = type(owner).__module__.partition(".")[0]
    for path, value in _direct(owner):
        yield path, value
        if type(value).__module__.partition(".")[0] == package:
            yield from ((f"{path}.{inner}", each) for inner, each in _direct(value))


def _direct(owner: object) -> Iterator[tuple[str, Any]]:
    for name, value in _attributes(owner).items():
        if isinstance(value, list | tuple):
            yield from ((f"{name}[{place}]", each) for place, each in enumerate(value))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
        else:
            yield name, value


def _attributes(owner: object) -> dict[str, Any]:
    found = dict(getattr(owner, "__dict__", {}))
    for base in type(owner).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(owner, name):
                found.setdefault(name, getattr(owner, name))
    return found
