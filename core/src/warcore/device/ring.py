"""A ring of events: one record per launch, and none overwritten while a launch needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.errors import DeviceError

if TYPE_CHECKING:
    from warcore.device.base import Device, Event, Ticket


class EventRing:
    """`depth` events, recorded in turn.

    At most `depth` launches may hold a ticket. Recording an event whose ticket is held would move
    the fence of an older launch: that is refused, not waited for.
    """

    def __init__(self, device: Device, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"a ring of {depth} events has no slot")
        self._device = device
        self.events: list[Event | None] = [None] * depth
        """Of each slot; None: not used yet."""
        self.held: list[Ticket | None] = [None] * depth
        """The ticket that holds each slot; None: free."""
        self._next = 0

    def record(self) -> Ticket:
        """Record the next slot on the current stream; the ticket holds it until `release`."""
        slot = self._next
        held = self.held[slot]
        if held is not None:
            raise DeviceError(
                f"slot {slot} of an event ring of {len(self.events)} is still held by an older "
                "launch: recording it again would move that launch's fence",
                next="wait on, supersede or discard the older ticket, then release it",
            )
        event = self.events[slot]
        if event is None:
            event = self.events[slot] = self._device.event()
        ticket = event.record()
        self.held[slot] = ticket
        self._next = (slot + 1) % len(self.events)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Give the slot back. A ticket that this ring does not hold is ignored."""
        for slot, held in enumerate(self.held):
            if held == ticket:
                self.held[slot] = None
