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
    from collections.abc import Callable

    from warcore.device import Device, Stream

Stamp = Any
"""Opaque; only the clock that took it can read it."""

_REACH = 1_000_000_000
"""Distances of events are told as 32-bit floats of milliseconds: to 0.1 us within a second, and
only to 4 us within a minute."""
_LEAST = 100_000_000
"""Nanoseconds: in a shorter run the clocks drift less than tying them a second time errs."""


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
        """When that was, in nanoseconds since a moment of the clock's own; None: nobody knows.

        A stamp that was never taken is None.
        """


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

    def read(self, stamp: int | None) -> int | None:
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
    event recorded in it, and is read as its distance from an event before. The two clocks are tied
    where the host sees an event come, at the begin and at the end: to about 10 us, the time that
    it takes to see it.

    cuda, now: `torch.cuda` and the host's clock in nanoseconds.
    """

    name: ClassVar[str] = "cuda"

    def __init__(self, cuda: Any, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._cuda = cuda
        self._now = now
        self._bases: list[Any] = []
        """Events from which others are measured, a second or more apart."""
        self._offsets = [0]
        """Of the bases, in nanoseconds from the first, as far as they were read."""
        self._rate = 1.0
        """Nanoseconds of the host for one of the device."""
        base, self._zero = self._tie()
        self._bases.append(base)
        self._newest = self._zero

    def stamp(self, stream: Stream | None) -> Stamp:
        now = self._now()
        if stream is None:
            return now
        # An event recorded within a capture would become a node of that graph.
        if self._cuda.is_current_stream_capturing():
            return None
        if now - self._newest > _REACH:
            self._bases.append(self._event(stream))
            self._newest = now
        return len(self._bases) - 1, self._event(stream)

    def settle(self) -> None:
        # A device that broke in the middle has nothing more to say.
        with suppress(RuntimeError):
            self._cuda.synchronize()
            event, now = self._tie()
            there = self._since_begin(len(self._bases) - 1, event)
            if there > _LEAST:
                self._rate = (now - self._zero) / there

    def read(self, stamp: Stamp) -> int | None:
        if stamp is None or isinstance(stamp, int):
            return stamp
        try:
            return self._zero + round(self._since_begin(*stamp) * self._rate)
        except RuntimeError:
            # The device broke while it ran: what it never reached has no time.
            return None

    def _event(self, stream: Stream) -> Any:
        event = self._cuda.Event(enable_timing=True)
        owner: Any = stream
        event.record(owner.raw)
        return event

    def _tie(self) -> tuple[Any, int]:
        """An event, and the host's time when it came."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        return event, self._now()

    def _since_begin(self, base: int, event: Any) -> int:
        """Nanoseconds of the device from the first base to `event`, measured from number `base`."""
        while len(self._offsets) <= base:
            i = len(self._offsets)
            gap = self._distance(self._bases[i - 1], self._bases[i])
            self._offsets.append(self._offsets[-1] + gap)
        return self._offsets[base] + self._distance(self._bases[base], event)

    def _distance(self, base: Any, event: Any) -> int:
        milliseconds: float = base.elapsed_time(event)
        return round(milliseconds * 1_000_000)


def clock_of(device: Device) -> Clock:
    """The clock that fits the kind of device."""
    if device.name == "cuda":
        import torch

        return CudaClock(torch.cuda)
    return VirtualClock(device) if device.name == "virtual" else WallClock(device)
