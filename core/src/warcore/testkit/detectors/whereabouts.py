"""Whereabouts: an observer of a device that says which thread is busy with what."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from warcore.device import Observer

if TYPE_CHECKING:
    from warcore.device import Pending, Stream
    from warcore.testkit.detectors.faults import FaultHandler


class _Nested(threading.local):
    """Of each thread: what it is at, the innermost last. An inline device nests its streams."""

    def __init__(self) -> None:
        self.places: list[tuple[str, str]] = []


class Whereabouts(Observer):
    """Labels the calling thread with the stream and the phase of the work that begins on it."""

    def __init__(self, handler: FaultHandler) -> None:
        self._handler = handler
        self._nested = _Nested()

    def started(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """Work of `stream` begins on this thread."""
        place = stream.name, ""
        self._nested.places.append(place)
        self._handler.label(place)

    def finished(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """It has ended."""
        places = self._nested.places
        # Work that began before anybody watched may end now.
        if places:
            places.pop()
        self._handler.label(places[-1] if places else None)

    def phase(self, stream: Stream | None, name: str) -> None:
        """It goes on to another phase."""
        places = self._nested.places
        if stream is not None and places:
            places[-1] = stream.name, name
            self._handler.label(places[-1])
