"""Several observers of one device, which has room for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.device import Observer

if TYPE_CHECKING:
    from warcore.device import Pending, Stream, Ticket


class Several(Observer):
    """Passes every report on to all of `observers`, in their order.

    The end of work goes to them in reverse: what one sets up on the thread when work begins lies
    within what those before it set up.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def submitted(self, stream: Stream, pending: Pending) -> None:
        for observer in self._observers:
            observer.submitted(stream, pending)

    def started(self, stream: Stream, pending: Pending) -> None:
        for observer in self._observers:
            observer.started(stream, pending)

    def finished(self, stream: Stream, pending: Pending) -> None:
        for observer in reversed(self._observers):
            observer.finished(stream, pending)

    def joined(self, pending: Pending) -> None:
        for observer in self._observers:
            observer.joined(pending)

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        for observer in self._observers:
            observer.recorded(stream, ticket)

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        for observer in self._observers:
            observer.waited(stream, ticket)

    def phase(self, stream: Stream | None, name: str) -> None:
        for observer in self._observers:
            observer.phase(stream, name)
