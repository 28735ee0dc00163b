"""Several observers of one device, which has room for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warcore.device import Observer, Pending, Stream, Ticket


class Several:
    """Passes every report on to all of `observers`, in their order.

    The end of work goes to them in reverse: what one sets up on the thread when work begins lies
    within what those before it set up.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def submitted(self, stream: Stream, pending: Pending) -> None:
        """The work was put into `stream`."""
        for observer in self._observers:
            observer.submitted(stream, pending)

    def started(self, stream: Stream, pending: Pending) -> None:
        """The work begins."""
        for observer in self._observers:
            observer.started(stream, pending)

    def finished(self, stream: Stream, pending: Pending) -> None:
        """The work has returned or raised."""
        for observer in reversed(self._observers):
            observer.finished(stream, pending)

    def joined(self, pending: Pending) -> None:
        """The caller has taken the outcome of the work."""
        for observer in self._observers:
            observer.joined(pending)

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        """`stream` passes the record."""
        for observer in self._observers:
            observer.recorded(stream, ticket)

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        """`stream`, or the host, goes on after the record."""
        for observer in self._observers:
            observer.waited(stream, ticket)

    def phase(self, stream: Stream | None, name: str) -> None:
        """The running work goes on to its phase `name`."""
        for observer in self._observers:
            observer.phase(stream, name)
