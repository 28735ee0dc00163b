"""Marks: where an engine that is not ours says that it reads no more."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from warcore.errors import WarcoreError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Listener(Protocol):
    """Hears of the marks of one run."""

    def passed(self, name: str, *, late: bool) -> None:
        """A mark is passed, on the thread that calls `mark`."""


_observing = threading.Lock()
_listener: Listener | None = None


def mark(name: str, *, late: bool = True) -> None:
    """Say, within a step that `observe` runs, that the shared tensors are read no more.

    Call it where the engine records the event after which others may write; on any thread, any
    number of times. From here on every touch, of any thread, is late, and bears `name`. late=False:
    touches are welcome again, because the next step of several begins.

    Does nothing where nobody observes, so it may stay in an engine's code.
    """
    if _listener is not None:
        _listener.passed(name, late=late)


@contextmanager
def marks_go_to(listener: Listener | None) -> Iterator[None]:
    """Let `listener` hear of the marks of all threads."""
    global _listener  # noqa: PLW0603 - a mark knows nothing but its name
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextmanager
def one_observation() -> Iterator[None]:
    """One observation at a time. WarcoreError if there is one: marks do not say whose they are."""
    if not _observing.acquire(blocking=False):
        raise WarcoreError(
            "a step is being observed already", next="observe one step after the other"
        )
    try:
        yield
    finally:
        _observing.release()
