"""The memory of host graphs: what a captured function has let go of serves its later calls."""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_left, insort
from collections import deque

import attrs
import torch

from warcore.device.graph import GraphPool

_ALIGNMENT = 64
"""Bytes. As torch's own memory on CPUs: kernels must take the same paths as in eager steps."""


@attrs.frozen
class Geometry:
    """How a tensor lies in memory of its own. Strides count elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    nbytes: int = attrs.field(init=False, eq=False)
    """From the first element to the end of the last."""

    @nbytes.default
    def _nbytes(self) -> int:
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


def geometry(tensor: torch.Tensor) -> Geometry | None:
    """How `tensor` lies in its memory; None if it does not fill that memory from its start."""
    plain = (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.storage_offset() == 0
        and torch._debug_has_internal_overlap(tensor) == 0  # noqa: SLF001 - no public form
    )
    if not plain:
        return None
    found = Geometry(tensor.dtype, tuple(tensor.shape), tensor.stride())
    return found if found.nbytes == tensor.untyped_storage().nbytes() else None


class HostPool(GraphPool):
    """Chunks of memory, each lent to one result of a captured call at a time.

    A chunk comes back when the last tensor over it dies, views included: then neither the captured
    function nor anybody else can look at it. What replays need are `alias`es, which do not count.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, torch.Tensor] = {}
        self._free: list[tuple[int, int]] = []
        # NOTE: tensors die on any thread, also in the middle of `place`; appending is atomic.
        self._returned: deque[tuple[int, int]] = deque()
        self._kept: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        return sum(map(_held, (*self._kept, *self._chunks.values())))

    def place(self, form: Geometry) -> torch.Tensor:
        """A tensor of that form, its values undefined, in the smallest free chunk that holds it."""
        size, address = self._take(-(-max(form.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT)
        raw = (ctypes.c_char * size).from_address(address)
        # The chunk goes along: a result may outlive its pool.
        let_go = weakref.finalize(raw, _come_back, self._returned, self._chunks[address])
        let_go.atexit = False
        count = form.nbytes // form.dtype.itemsize
        flat = torch.frombuffer(raw, dtype=form.dtype, count=max(count, 1))
        return flat.as_strided(form.shape, form.stride)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hold and count a result that has to stay in its own memory."""
        self._kept.append(tensor)
        return tensor

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements without a claim on their chunk; `tensor` itself if not of this pool."""
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor
        chunk = self._chunks.get(tensor.untyped_storage().data_ptr())
        if chunk is None:
            return tensor
        offset = tensor.storage_offset()
        return chunk.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), offset)

    def _take(self, size: int) -> tuple[int, int]:
        while self._returned:
            insort(self._free, self._returned.popleft())
        best = bisect_left(self._free, (size, 0))
        if best < len(self._free):
            return self._free.pop(best)
        chunk = torch.empty(size, dtype=torch.uint8)
        self._chunks[chunk.data_ptr()] = chunk
        return size, chunk.data_ptr()


def _come_back(returned: deque[tuple[int, int]], chunk: torch.Tensor) -> None:
    returned.append((chunk.nbytes, chunk.data_ptr()))


def _held(tensor: torch.Tensor) -> int:
    strided = tensor.layout is torch.strided
    return tensor.untyped_storage().nbytes() if strided else tensor.nbytes
