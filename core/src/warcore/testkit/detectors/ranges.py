"""Which bytes a tensor's elements lie in, and which of them belong to a watched buffer."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Interval = tuple[int, int]
    """First byte and one past the last."""

MAX_RUNS = 4096
"""A tensor in more pieces counts as all the bytes from its first to its last."""

_MAX_KNOWN = 4096


@attrs.frozen
class Overlap:
    """What was touched of a watched buffer; bytes counted from the buffer's start."""

    buffer: str
    start: int
    stop: int


@attrs.frozen(eq=False)
class _View:
    """One range of addresses at which a buffer is seen."""

    buffer: str
    address: int
    end: int
    runs: Sequence[Interval]

    def overlap(self, start: int, stop: int) -> Overlap:
        return Overlap(self.buffer, start - self.address, stop - self.address)


class Watched:
    """Named buffers, each seen as one tensor or, mapped or aliased, as several.

    Keeps the tensors: other memory must not get their addresses. A buffer is where it was when it
    was given.
    """

    def __init__(self, buffers: Mapping[str, torch.Tensor | Sequence[torch.Tensor]]) -> None:
        self._kept = dict(buffers)
        self._views: list[_View] = []
        for name, given in buffers.items():
            for tensor in [given] if isinstance(given, torch.Tensor) else given:
                runs = runs_of(tensor)
                if runs:
                    address = tensor.data_ptr()
                    self._views.append(_View(name, address, runs[-1][1], runs))
        self._end = max((view.end for view in self._views), default=0)
        self._known: dict[Any, tuple[Overlap, ...]] = {}

    def touched(self, tensor: torch.Tensor) -> tuple[Overlap, ...]:
        """What a call touches that touches all elements of `tensor`."""
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            return ()  # it has no memory of its own: sparse, packed, or a stand-in
        if address >= self._end or not address:
            return ()
        # The same tensors come again and again, and so do others at their addresses.
        key = address, tensor.shape, tensor.stride(), tensor.dtype
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = tuple(self._overlaps(runs_of(tensor)))
        return known

    def touched_at(self, addresses: Any, size: int) -> tuple[Overlap, ...]:
        """What is touched by `size` bytes at each of `addresses`: a tensor or an array of ints."""
        found = []
        for view in self._views:
            within = addresses[(addresses < view.end) & (addresses + size > view.address)]
            if len(within):
                start, stop = int(within.min()), int(within.max()) + size
                found.append(view.overlap(max(start, view.address), min(stop, view.end)))
        return tuple(found)

    def _overlaps(self, runs: Sequence[Interval]) -> Iterable[Overlap]:
        for view in self._views:
            shared = _shared(runs, view.runs)
            if shared is not None:
                yield view.overlap(*shared)


def runs_of(tensor: torch.Tensor) -> list[Interval]:
    """The addresses of the elements as ascending runs of bytes without a gap. None for none."""
    if not tensor.numel():
        return []
    length = tensor.element_size()
    outer: list[tuple[int, int]] = []
    dims = sorted(
        (stride * tensor.element_size(), count)
        for stride, count in zip(tensor.stride(), tensor.shape, strict=True)
        if stride and count > 1
    )
    for stride, count in dims:
        if stride <= length and not outer:
            length += stride * (count - 1)
        else:
            outer.append((stride, count))
    address = tensor.data_ptr()
    pieces = 1
    for _, count in outer:
        pieces *= count
    if pieces > MAX_RUNS:
        last = sum(stride * (count - 1) for stride, count in outer)
        return [(address, address + last + length)]
    steps = [range(0, stride * count, stride) for stride, count in reversed(outer)]
    starts = sorted(address + sum(offsets) for offsets in itertools.product(*steps))
    return [(start, start + length) for start in starts]


def _shared(one: Sequence[Interval], other: Sequence[Interval]) -> Interval | None:
    """From the first byte to the last that lies in both, each in ascending order."""
    if not one or not other or one[-1][1] <= other[0][0] or other[-1][1] <= one[0][0]:
        return None
    first = last = None
    i = j = 0
    while i < len(one) and j < len(other):
        start, stop = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < stop:
            first, last = start if first is None else first, max(stop, last or stop)
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return None if first is None or last is None else (first, last)
