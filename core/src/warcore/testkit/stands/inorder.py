"""In-order poison within a captured step: what the kit puts around the marker of each capture.

On CUDA a replay is one launch: nothing that the host does can come between the marker and what
follows. So the capture itself holds an overwrite of the shared table, right behind the marker, and
the host chooses before each replay with what. As a rule it is what lies there anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warcore.testkit.outcome import Unproven
from warcore.testkit.stands.cudagates import Gate, why_no_gates

if TYPE_CHECKING:
    from warcore.device import Device, Event, Stream, Ticket
    from warcore.testkit.detectors.endingfence import End


class AroundMarker:
    """What each capture of a device has around its marker: a gate, then an overwrite and a gate.

    table: [rows + 1, context], what is overwritten.
    """

    def __init__(self, device: Device, table: torch.Tensor) -> None:
        self._table, self._poison = table, table.clone()
        self._gates = () if why_no_gates() else (Gate(device), Gate(device))
        _wrap_markers(device, self._before, self._after)

    @property
    def before(self) -> Gate:
        """The gate before the marker. Unproven if there are no gates."""
        return self._gate(0)

    @property
    def after(self) -> Gate:
        """The gate behind the marker and the overwrite. Unproven if there are no gates."""
        return self._gate(1)

    def choose(self, slots: torch.Tensor) -> None:
        """With what the table, [rows + 1, context], is overwritten at the marker of each replay."""
        with torch.inference_mode():
            self._poison.copy_(slots)

    def warm_up(self) -> None:
        """Run all of it once: kernels that load within a capture would end it."""
        self._before()
        self._after()

    def open(self) -> None:
        """Let everybody pass."""
        for gate in self._gates:
            gate.open()

    def _gate(self, which: int) -> Gate:
        if not self._gates:
            raise Unproven(str(why_no_gates()))
        return self._gates[which]

    def _before(self) -> None:
        if self._gates:
            self._gates[0].put()

    def _after(self) -> None:
        self._table.copy_(self._poison)
        if self._gates:
            self._gates[1].put()


class Captured:
    """The capture overwrites the table itself, with `slots`, if its marker is the declared end."""

    def __init__(self, around: AroundMarker, slots: torch.Tensor) -> None:
        self._around, self._slots = around, slots

    def offered(self) -> None:
        """From this replay on the markers write it."""
        self._around.choose(self._slots)

    def launched(self, ticket: Ticket) -> None:
        """Nothing: the launch has it in it."""

    def over(self) -> None:
        """Nothing was held."""


class Held:
    """Lets the host do something, on the schedule stream, while a replay stands at its marker."""

    def __init__(self, around: AroundMarker, device: Device, schedule: Stream, end: End) -> None:
        self._around, self._schedule, self._end = around, schedule, end
        self._written = device.event()

    def offered(self) -> None:
        """The replay will stop at its marker. Unproven if there are no gates."""
        self._around.after.shut()

    def launched(self, ticket: Ticket) -> None:
        """What waits for the marker's event goes on, and the replay only after that."""
        gate = self._around.after
        expired = gate.expired
        try:
            gate.wait()
            self._schedule.wait(ticket)
            self._schedule.submit(self._end).result()
            self._written.record(self._schedule).synchronize()
        finally:
            gate.open()
        if gate.expired != expired:
            raise Unproven("a replay went on from its marker too soon")

    def over(self) -> None:
        """Whatever happened, nobody stays."""
        self._around.open()


def _wrap_markers(device: Any, before: End, after: End) -> None:
    """Let captures record the external events of `device` between `before` and `after`."""
    make = device.event

    def event(*, external: bool = False) -> Event:
        made: Any = make(external=external)
        if external:
            record = made.record

            def recorded(stream: Stream | None = None) -> Ticket:
                if not device.capturing:
                    return record(stream)  # type: ignore[no-any-return]
                before()
                ticket: Ticket = record(stream)
                after()
                return ticket

            made.record = recorded
        return made  # type: ignore[no-any-return]

    device.event = event
