"""Graphs of the CUDA device: captured sections, and the eager breaks between them."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import torch

from warcore.device.graph import Graph, recorded_twice
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.cuda import CudaDevice, CudaStream
    from warcore.device.cudaevent import CudaEvent
    from warcore.device.cudapool import CudaPool

T = TypeVar("T")

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


@attrs.frozen(eq=False)
class _Section:
    """What was captured between two breaks."""

    raw: torch.cuda.CUDAGraph
    markers: tuple[CudaEvent, ...]

    def __call__(self, stream: CudaStream) -> None:
        self.raw.replay()
        for marker in self.markers:
            marker.launched(stream)


@attrs.frozen(eq=False)
class _Break:
    """A function that runs eagerly in each replay, and where its value belongs.

    What the function closes over stays alive with it, at the addresses that the sections before
    write to.
    """

    fn: Callable[[], torch.Tensor]
    fixed: torch.Tensor

    def __call__(self, stream: CudaStream) -> None:  # noqa: ARG002
        value = self.fn()
        if value.shape != self.fixed.shape or value.dtype != self.fixed.dtype:
            raise DeviceError(
                f"the function of a break gave {tuple(value.shape)} {value.dtype} in a replay, "
                f"and {tuple(self.fixed.shape)} {self.fixed.dtype} at capture",
                next="capture a graph for each shape",
            )
        self.fixed.copy_(value)


class CudaGraph(Graph):
    """CUDA graphs with eager calls between them, in one pool of memory."""

    def __init__(self, device: CudaDevice, pool: CudaPool) -> None:
        self._device = device
        self._pool = pool
        self._parts: list[Callable[[CudaStream], None]] = []
        self._captured = False
        self._open: torch.cuda.CUDAGraph | None = None
        """The section that is being captured."""
        self._markers: list[CudaEvent] = []
        """The external events recorded in it."""

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
        with self._pool.captures():
            try:
                self._begin()
                value = fn()
                self._end()
            except BaseException as error:
                self._abandon()
                if isinstance(error, RuntimeError) and "captur" in str(error):
                    raise _refusal(error) from error
                raise
        self._captured = True
        return value

    def outside(self, fn: Callable[[], torch.Tensor]) -> torch.Tensor:
        underway: object = self._device.local.capture
        if underway is not self:
            raise DeviceError(
                "a break was asked for outside the capture of its graph",
                next="call outside() in the function that capture() runs",
            )
        stream: CudaStream = self._device.local.stream  # type: ignore[assignment]
        before = len(self._parts)
        self._end()
        try:
            # Captured work has not run. The function may look at what it makes, and must not
            # meet whatever lay in that memory: a wild index would end the CUDA context.
            for part in self._parts[before:]:
                part(stream)
            value = fn()
            # No capture is underway, so this is not the pool's to hand out again.
            fixed = self._pool.keep(torch.empty_like(value).copy_(value))
            self._parts.append(_Break(fn, fixed))
        finally:
            self._begin()
        return fixed

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
        for part in self._parts:
            part(stream)

    @property
    def sections(self) -> list[tuple[torch.cuda.CUDAGraph, tuple[CudaEvent, ...]]]:
        """What was captured between two breaks, in order, with the markers recorded in it."""
        parts = [part for part in self._parts if isinstance(part, _Section)]
        return [(part.raw, part.markers) for part in parts]

    def add_marker(self, event: CudaEvent) -> None:
        """During capture: each launch of this section records `event` anew. DeviceError twice."""
        parts = [part for part in self._parts if isinstance(part, _Section)]
        if event in self._markers or any(event in part.markers for part in parts):
            raise recorded_twice(event)
        self._markers.append(event)

    def _begin(self) -> None:
        self._open = self._pool.begin()
        self._device.local.capture = self  # type: ignore[assignment]

    def _end(self) -> None:
        """End the open section, which becomes a part if anything is in it."""
        assert self._open is not None
        self._device.local.capture = None
        filled = self._pool.end(self._open)
        section = _Section(self._open, tuple(self._markers))
        self._open, self._markers = None, []
        if filled:
            self._parts.append(section)

    def _abandon(self) -> None:
        """The capture has failed, and nothing of it stays."""
        self._device.local.capture = None
        raw, self._open = self._open, None
        self._parts.clear()
        self._markers.clear()
        if raw is not None:
            self._pool.abandon(raw)


def _refusal(error: RuntimeError) -> DeviceError:
    """What torch says of a forbidden call in a capture, with the line of the user's code."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OWN)
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
