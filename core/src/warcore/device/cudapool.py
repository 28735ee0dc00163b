"""The memory that CUDA graphs share, and how captures into it begin and end."""

from __future__ import annotations

import gc
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import torch

from warcore.device.graph import GraphPool

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T", bound=torch.Tensor)

_INVALIDATED: list[torch.cuda.CUDAGraph] = []
"""Captures that CUDA has invalidated: torch's allocators keep pointers to them for good."""


class CudaPool(GraphPool):
    """A private pool of torch's allocator; it lives as long as this or a graph in it does.

    Replays of its graphs follow one another on one stream: what a graph keeps no longer serves the
    others. Everything here is called within submitted work, with that stream the current one.
    """

    def __init__(self, device: torch.device, *, keeps_graphs: bool = False) -> None:
        self._device = device
        self._keeps_graphs = keeps_graphs
        self._handle = torch.cuda.graph_pool_handle()
        self._anchor: torch.cuda.CUDAGraph | None = None
        """An empty graph: torch refuses a pool whose last graph has died."""
        self._reserved = 0
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def keep(self, tensor: T) -> T:
        """Count memory that its graphs keep outside torch's pool."""
        self._nbytes += tensor.nbytes
        return tensor

    @contextmanager
    def captures(self) -> Iterator[None]:
        """Around one capture with all its sections."""
        # The work before it is over then, whose inputs another stream may be about to let go of.
        torch.cuda.synchronize(self._device)
        if self._anchor is None:
            # Once for all graphs: it takes longer than a capture. Cached memory goes back, so that
            # the pool has room, and so does what was garbage by now.
            gc.collect()
            torch.cuda.empty_cache()
            self._anchor = self._empty_graph()
        collects = gc.isenabled()
        # The destructor of somebody else's graph or stream would invalidate the capture.
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()

    def begin(self) -> torch.cuda.CUDAGraph:
        """Begin to capture what this thread does on the current stream.

        thread_local: other threads may go on using CUDA; only what this one does is judged.
        """
        raw = torch.cuda.CUDAGraph(keep_graph=self._keeps_graphs)
        self._reserved = torch.cuda.memory_reserved(self._device)
        raw.capture_begin(pool=self._handle, capture_error_mode="thread_local")
        return raw

    def end(self, raw: torch.cuda.CUDAGraph) -> bool:
        """End the capture; whether there is anything in it. RuntimeError if it was invalidated."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            raw.capture_end()
            if self._keeps_graphs:
                raw.instantiate()
        self._nbytes += max(torch.cuda.memory_reserved(self._device) - self._reserved, 0)
        return not any("is empty" in str(warning.message) for warning in caught)

    def abandon(self, raw: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed, whatever state it is in; later captures start afresh."""
        try:
            self.end(raw)
        except RuntimeError:
            # torch's `capture_end` stops at CUDA's complaint, before it tells its allocator; left
            # so, the next `empty_cache` of the process would fail an assertion.
            with suppress(RuntimeError):
                index = self._device.index
                torch._C._cuda_endAllocateToPool(index, self._handle)  # noqa: SLF001 - no public form
                torch._C._cuda_releasePool(index, self._handle)  # noqa: SLF001 - likewise
            _INVALIDATED.append(raw)
            self._handle = torch.cuda.graph_pool_handle()
            with suppress(RuntimeError):
                # A capture that ends well also takes the random generator out of its capture.
                self._anchor = self._empty_graph()

    def _empty_graph(self) -> torch.cuda.CUDAGraph:
        raw = self.begin()
        self.end(raw)
        return raw
