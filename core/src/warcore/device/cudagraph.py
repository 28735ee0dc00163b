"""Graphs of the CUDA device."""

from __future__ import annotations

import gc
import linecache
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import torch

from warcore.device.base import Graph
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.device.cuda import CudaDevice, CudaEvent, CudaStream

T = TypeVar("T")


class CudaGraph(Graph):
    """A CUDA graph with a memory pool of its own: replays of others never touch its results."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._raw = torch.cuda.CUDAGraph()
        self._captured = False
        self._nbytes = 0
        self.markers: list[CudaEvent] = []

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def capture(self, fn: Callable[[], T]) -> T:
        local = self._device.local
        if local.stream is None:
            raise DeviceError(
                "a graph was captured outside submitted work",
                next="stream.submit(graph.capture, fn)",
            )
        if self._captured or local.capture is not None:
            when = "has been captured" if self._captured else "is inside another capture"
            raise DeviceError(f"the graph {when}", next="capture each graph once, into a new one")
        # What is cached or garbage now must not be freed in mid-capture, nor count as the graph's.
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        with self._recording():
            value = fn()
        self._captured = True
        self._nbytes = torch.cuda.memory_reserved() - before
        return value

    def replay(self) -> None:
        stream: CudaStream | None = self._device.local.stream  # type: ignore[assignment]
        if stream is None:
            raise DeviceError(
                "a graph was replayed outside submitted work", next="stream.submit(graph.replay)"
            )
        if not self._captured:
            raise DeviceError("the graph holds nothing yet", next="capture it first")
        if self._device.local.capture is not None:
            raise DeviceError("a graph was replayed within a capture", next="replay it after")
        self._raw.replay()
        for marker in self.markers:
            marker.launched(stream)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """A capture on the current stream, ended whatever happens within.

        thread_local: other threads may go on using CUDA; only what this one does is judged.
        """
        local = self._device.local
        self._raw.capture_begin(capture_error_mode="thread_local")
        local.capture = self  # type: ignore[assignment]
        try:
            yield
        except BaseException as error:
            # Ending a capture that was invalidated or is empty complains too, and says less.
            with suppress(RuntimeError, UserWarning):
                self._raw.capture_end()
            self.markers.clear()
            self._raw = torch.cuda.CUDAGraph()
            if isinstance(error, RuntimeError) and "captur" in str(error):
                raise _refusal(error) from error
            raise
        else:
            self._raw.capture_end()
        finally:
            local.capture = None


def _refusal(error: RuntimeError) -> DeviceError:
    """What torch says of a forbidden call in a capture, with the line of the user's code."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(torch.__path__[0]) and frame.filename != __file__
    ]
    where = ""
    if frames:
        last = frames[-1]
        line = linecache.getline(last.filename, last.lineno or 0).strip()
        where = f"\n{last.filename}:{last.lineno}: {line}"
    first = str(error).partition("\n")[0]
    return DeviceError(
        f"a call cannot be captured: {first}{where}",
        next="keep it out of the captured function: do it before, and write the result into "
        "static memory",
    )
