"""The staging ring: the only host memory that an asynchronous copy to the device reads.

A copy engine reads host memory after the call that asked for it has returned. Refilling that
memory early is a write-after-read hazard of its own, which no fence on a stream can see; so every
slot has a ticket, and refilling waits for it.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from warcore.device import Device, Event, Pending, Stream, Ticket


@attrs.define(eq=False)
class _Slot:
    event: Event
    memory: torch.Tensor
    window: memoryview
    ticket: Ticket | None = None


class StagingRing:
    """`depth` slots of 64-bit host words, copied to the device on `stream`.

    submitted: hears of every copy, for whoever must know whether it failed.
    stalls: how often a refill had to wait for a copy that was still reading.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        words: int = 4096,
        depth: int = 8,
        submitted: Callable[[Pending], None] | None = None,
    ) -> None:
        self._device = device
        self.stream = stream
        self._submitted = submitted
        self.slots = [self._slot(words) for _ in range(depth)]
        self._next = 0
        self.stalls = 0

    def put(self, words: array[int], target: torch.Tensor | None = None) -> torch.Tensor:
        """A device tensor [len(words)] i64 that holds `words` once `stream` has come this far.

        target: the tensor to fill; the caller keeps it alive until the copy has run.

        Never blocks unless all slots are in use. From the host, or from work of `stream` itself.
        """
        import torch

        slot = self._vacant(len(words))
        slot.window[: len(words)] = words
        if target is None:
            target = torch.empty(len(words), dtype=torch.int64, device=self._device.torch_device)
        if self._device.current_stream() is self.stream:
            _copy(target, slot.memory)
        else:
            copy = self.stream.submit(_copy, target, slot.memory)
            if self._submitted is not None:
                self._submitted(copy)
        slot.ticket = slot.event.record(self.stream)
        return target

    def _vacant(self, words: int) -> _Slot:
        slot = self.slots[self._next]
        if slot.ticket is not None and not slot.ticket.query():
            self.stalls += 1
            slot.ticket.synchronize()
        if words > len(slot.window):
            # Retired and replaced, never resized: nothing reads the old memory any more.
            slot = self.slots[self._next] = self._slot(1 << (words - 1).bit_length())
        self._next = (self._next + 1) % len(self.slots)
        return slot

    def _slot(self, words: int) -> _Slot:
        import torch

        memory = self._device.host_buffer(words, torch.int64)
        raw = (ctypes.c_int64 * words).from_address(memory.data_ptr())
        return _Slot(self._device.event(), memory, memoryview(raw).cast("B").cast("q"))


def _copy(target: torch.Tensor, memory: torch.Tensor) -> None:
    target.copy_(memory[: target.shape[0]], non_blocking=True)


class Block:
    """Host values on their way to the device: columns of one tensor, filled by one copy."""

    def __init__(self, capacity: int, device: Device) -> None:
        import torch

        self.words = array("q")
        self.tensor = torch.empty(capacity, dtype=torch.int64, device=device.torch_device)

    def integers(self, values: Iterable[int]) -> torch.Tensor:
        """`values` as a column: a view [len(values)] i64 of the block."""
        start = len(self.words)
        self.words.extend(values)
        return self.tensor[start : len(self.words)]

    def column(self, values: list[int] | list[float], dtype: torch.dtype) -> torch.Tensor:
        """A column of int64, or of float64 for any floating dtype."""
        import torch

        if not dtype.is_floating_point:
            return self.integers(map(int, values))
        words = array("q")
        words.frombytes(array("d", values).tobytes())
        return self.integers(words).view(torch.float64)

    def ship(self, ring: StagingRing) -> None:
        """Send what the columns hold."""
        if self.words:
            ring.put(self.words, self.tensor)
