"""EndingFence: where the declared reads of a step end, and who is held there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from warcore.device import Observer
from warcore.fence import ReadFence

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.contract import ForwardMode
    from warcore.device import Device, Stream, Ticket
    from warcore.fence import Offer

    End = Callable[[], None]


class Hold(Protocol):
    """What happens where a replay passes its marker."""

    def offered(self) -> None:
        """The marker's ticket was offered; its replay comes next."""

    def launched(self, ticket: Ticket) -> None:
        """What passes the marker was launched; on a host device it has passed it, no more."""

    def over(self) -> None:
        """The step has ended, well or not."""


class EndingFence(ReadFence, Observer):
    """Tells where the declared reads end: at the offered record, or when a replay passes it.

    It has to watch the device for that.

    end: called there. hold: told of the marker of a replay in place of it.
    """

    def __init__(
        self, device: Device, mode: ForwardMode, end: End, hold: Hold | None = None
    ) -> None:
        super().__init__(device, mode)
        self._end = end
        self._hold = hold
        self.awaited: Ticket | None = None

    def offer(self, runner: object, offer: Offer) -> None:
        super().offer(runner, offer)
        if offer.ticket is None:
            return
        if not offer.ticket.event.external:
            self._end()
            return
        self.awaited = offer.ticket
        if self._hold is not None:
            self._hold.offered()

    def recorded(self, stream: Stream, ticket: Ticket) -> None:  # noqa: ARG002
        """A marker's record may be the end."""
        if ticket != self.awaited:
            return
        self.awaited = None
        if self._hold is None:
            self._end()
        else:
            self._hold.launched(ticket)
