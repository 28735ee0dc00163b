"""Observer: who sees what happens on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warcore.device.base import Pending, Stream, Ticket


class Observer:
    """Sees what happens on a device: a race detector, a timeline. See `Device.watched_by`.

    Each method is called on the thread, and at the moment, where the thing takes effect. It must
    not use the device's streams, events or latches. Here none of them does anything.
    """

    def submitted(self, stream: Stream, pending: Pending) -> None:
        """The work was put into `stream`; everything that the caller did so far is before it."""

    def started(self, stream: Stream, pending: Pending) -> None:
        """The work begins."""

    def finished(self, stream: Stream, pending: Pending) -> None:
        """The work has returned or raised."""

    def joined(self, pending: Pending) -> None:
        """The caller has taken the outcome of the work."""

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        """`stream` passes the record."""

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        """`stream` goes on after the record of `ticket`; None: the host does."""

    def phase(self, stream: Stream | None, name: str) -> None:
        """The work that runs on `stream` goes on to its phase `name`; the one before has ended."""
