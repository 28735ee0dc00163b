"""Clocks: what "now" means on a device, for its host and for each of its streams.

A stamp is taken when something happens, and read when the run is over: on an accelerator nobody
knows before then when a stream came to it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from warcore.errors import DeviceError

if TYPE_CHECKING:
    from warcore.device import Device, Stream

Stamp = Any
"""Opaque; only the clock that took it can read it."""


class Clock(ABC):
    """Takes stamps while a run goes on, and reads them afterwards."""

    name: ClassVar[str]
    """"wall", "virtual" or "cuda"."""

    @abstractmethod
    def stamp(self, stream: Stream | None) -> Stamp:
        """The present position of `stream` (None: of the host). Cheap; never blocks."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until the streams have done what was submitted, and every stamp can be read."""

    @abstractmethod
    def read(self, stamp: Stamp) -> int | None:
        """When that was, in nanoseconds since a moment of the clock's own; None: nobody knows."""


class WallClock(Clock):
    """The machine's clock: work of this device runs on the threads that report it."""

    name: ClassVar[str] = "wall"

    def __init__(self, device: Device) -> None:
        self._device = device

    def stamp(self, stream: Stream | None) -> int:  # noqa: ARG002  one clock for all
        return time.perf_counter_ns()

    def settle(self) -> None:
        # A device that ended in the middle has nothing more to say.
        with suppress(DeviceError):
            self._device.synchronize()

    def read(self, stamp: int) -> int:
        return stamp


class VirtualClock(Clock):
    """The clocks of a virtual device: each stream has one, and so has the host."""

    name: ClassVar[str] = "virtual"

    def __init__(self, device: Device) -> None:
        self._device: Any = device

    def stamp(self, stream: Stream | None) -> float:
        owner: Any = stream
        return self._device.now if owner is None else owner.clock  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Nothing: work was done when it was submitted."""

    def read(self, stamp: float) -> int:
        return round(stamp * 1000)


class CudaClock(Clock):
    """Timing events in the streams, and the machine's clock for the host.

    When the host submits says nothing of when a stream gets there: so each stamp of a stream is an
    event recorded in it, and is read as its distance from one event that both clocks know. The
    two are tied to about the time that it takes the host to notice an event: 10 us.
    """

    name: ClassVar[str] = "cuda"

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._base = self._cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self._base.record()
        self._base.synchronize()
        self._zero = time.perf_counter_ns()

    def stamp(self, stream: Stream | None) -> Stamp:
        if stream is None:
            return time.perf_counter_ns()
        # An event recorded within a capture would become a node of that graph.
        if self._cuda.is_current_stream_capturing():
            return None
        owner: Any = stream
        event = self._cuda.Event(enable_timing=True)
        event.record(owner.raw)
        return event

    def settle(self) -> None:
        # A device that broke in the middle has nothing more to say.
        with suppress(RuntimeError):
            self._cuda.synchronize()

    def read(self, stamp: Stamp) -> int | None:
        if stamp is None or isinstance(stamp, int):
            return stamp
        try:
            milliseconds: float = self._base.elapsed_time(stamp)
        except RuntimeError:
            # The device broke while it ran: what it never reached has no time.
            return None
        return self._zero + round(milliseconds * 1_000_000)


def clock_of(device: Device) -> Clock:
    """The clock that fits the kind of device."""
    if device.name == "cuda":
        return CudaClock()
    return VirtualClock(device) if device.name == "virtual" else WallClock(device)
