"""EndingFence: where the declared reads of a step end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.fence import ReadFence

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.contract import ForwardMode
    from warcore.device import Device, Ticket
    from warcore.fence import Offer

    End = Callable[[], None]


class EndingFence(ReadFence):
    """Tells where the declared reads end: at the offered record, or when a replay passes it."""

    def __init__(self, device: Device, mode: ForwardMode, end: End) -> None:
        super().__init__(device, mode)
        self._end = end
        self.awaited: Ticket | None = None

    def offer(self, runner: object, offer: Offer, *, last: bool) -> None:
        super().offer(runner, offer, last=last)
        if offer.ticket is None:
            return
        if offer.ticket.event.external:
            self.awaited = offer.ticket
        else:
            self._end()

    def recorded(self, ticket: Ticket) -> None:
        """A stream of the device has passed a record."""
        if ticket == self.awaited:
            self.awaited = None
            self._end()
