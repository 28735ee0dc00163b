"""Gates in the work of a CUDA stream: points at which it stands still until the host says so.

With one before a marker and one behind it, what the position of an event means can be tried: it
must not be done while what comes before it has not happened, and must be done while what comes
after it has not. A schedule stream that waits for the event writes meanwhile, as in an engine.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import attrs
import torch

from warcore.testkit.detectors.used import note
from warcore.testkit.outcome import Unproven

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.device import Device, Ticket
    from warcore.testkit.stands.stand import Stand

PATIENCE: Final = 5.0
"""Seconds that a stream waits at a gate which nobody opens: an error, but no dead device."""

_OPEN, _REACHED, _EXPIRED = range(3)


def why_no_gates() -> str | None:
    """Why no stream can be held here; None: one can."""
    return None if find_spec("triton") else "Triton is not installed, so no stream can be held"


class Gate:
    """A gate, open at first. Captured, it is passed by each replay."""

    def __init__(self, device: Device, seconds: float = PATIENCE) -> None:
        self._state = device.host_buffer(3, torch.int32).zero_()
        self._seconds = seconds
        self._awaited = 0
        self.open()

    def put(self) -> None:
        """Put it into the current stream, here."""
        from warcore.testkit.stands.gate_kernel import hold

        kernel: Any = hold
        kernel[1,](self._state, int(self._seconds * 1e9), num_warps=1)

    def shut(self) -> None:
        """From here on the stream stops at it, for some seconds at most."""
        self._awaited = int(self._state[_REACHED]) + 1
        self._state[_OPEN] = 0

    def open(self) -> None:
        """Let the stream pass, now and later."""
        self._state[_OPEN] = 1

    def wait(self) -> None:
        """Block the host until the stream has come to the gate since it was shut.

        Whatever was put into the stream before is done then. Unproven if it never comes.
        """
        deadline = time.monotonic() + self._seconds
        while int(self._state[_REACHED]) < self._awaited:
            if time.monotonic() > deadline:
                raise Unproven(f"no stream came to a gate within {self._seconds:g} s")

    @property
    def expired(self) -> int:
        """How often a stream went on although nobody had opened."""
        return int(self._state[_EXPIRED])


@attrs.frozen
class Position:
    """Where the event of a replayed step lies, as a stream that waits for it would find."""

    early: bool
    """It is done while something before the declared end still has to happen."""
    late: bool
    """It is not done although nothing before the declared end has to happen any more."""


def position_of_marker(stand: Stand, batch: ForwardBatch) -> Position:
    """Where the marker of a replay of `batch` lies. Two launches.

    Unproven where no stream can be held, or where the step has no marker to ask for.
    """
    around = stand.tables.around
    if around is None:
        raise Unproven("markers are held on CUDA only")
    note("event position")
    return Position(
        early=_done(stand, batch, around.before),
        late=not _done(stand, batch, around.after),
    )


def _done(stand: Stand, batch: ForwardBatch, gate: Gate) -> bool:
    """Whether the event of the step is done while its stream stands at `gate`."""
    probe = Probe(gate)
    stand.run(batch, hold=probe)
    if probe.done is None:
        raise Unproven("the step was not replayed past a marker")
    return probe.done


class Probe:
    """Shuts a gate for one replay, and asks for the event when the stream stands at it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.done: bool | None = None
        """None: there was no replay past a marker."""

    def offered(self) -> None:
        """The replay comes next."""
        self._gate.shut()

    def launched(self, ticket: Ticket) -> None:
        """The part of the replay that holds the marker was launched."""
        try:
            expired = self._gate.expired
            self._gate.wait()
            self.done = ticket.query()
            if self._gate.expired != expired:
                raise Unproven("a stream went on while it was asked about")
        finally:
            self._gate.open()

    def over(self) -> None:
        """The step has ended, well or not."""
        self._gate.open()
