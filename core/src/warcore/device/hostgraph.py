"""A graph on the host: the ATen calls of one run, with their memory, replayed in place.

Capture runs the function once and keeps every call with its arguments and results. A replay calls
them again so that each result lands in the memory of the first run: views need no replay, in-place
calls are repeated as they are, others go through `out=` or are copied back (hostcalls.py). So a
replay computes exactly what eager execution would, on whatever the inputs hold by then.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils._python_dispatch import _get_current_dispatch_mode

from warcore.device.graph import Graph, recorded_twice
from warcore.device.hostprogram import joined, singly
from warcore.device.hostrecorder import NoHostReads, Recorder
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore.device.base import Stream
    from warcore.device.host import HostDevice
    from warcore.device.hostevent import HostEvent
    from warcore.device.hostpool import HostPool
    from warcore.device.virtual import VirtualDevice
    from warcore.device.virtualevent import VirtualEvent

T = TypeVar("T")


class HostGraph(Graph):
    """Recorded ATen calls, their results in the memory of `pool`."""

    def __init__(self, device: HostDevice | VirtualDevice, pool: HostPool) -> None:
        self._device = device
        self._recorder = Recorder(self, pool)
        self._captured = False
        self._stream: Stream | None = None
        self._markers: list[HostEvent | VirtualEvent] = []

    def __len__(self) -> int:
        """How many things a replay does."""
        return len(self._recorder.nodes)

    @property
    def recording(self) -> bool:
        """Whether what the calling thread does goes into this graph."""
        return self._device.local.capture is self

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
        recorder = self._recorder
        local.capture = self
        try:
            with NoHostReads(self), recorder:
                value = fn()
            recorder.check_memory()
        except BaseException:
            recorder.clear()
            raise
        finally:
            local.capture = None
            recorder.forget_forms()
        self._captured = True
        # Now rather than in the first step that somebody waits for.
        _ = self._steps
        return value

    def outside(self, fn: Callable[[], torch.Tensor]) -> torch.Tensor:
        if not self.recording:
            raise DeviceError(
                "a break was asked for outside the capture of its graph",
                next="call outside() in the function that capture() runs",
            )
        local = self._device.local
        local.capture = None
        try:
            fixed = self._recorder.place_copy(fn())
        finally:
            local.capture = self
        self.add(functools.partial(_run_again, fn, self._recorder.alias(fixed)))
        return fixed

    def replay(self) -> None:
        stream = self._device.local.stream
        if stream is None:
            raise DeviceError(
                "a graph was replayed outside submitted work", next="stream.submit(graph.replay)"
            )
        if not self._captured:
            raise DeviceError("the graph holds nothing yet", next="capture it first")
        if self._device.local.capture is not None:
            raise DeviceError("a graph was replayed within a capture", next="replay it after")
        self._recorder.check_memory()
        self._stream = stream
        for step in self._steps:
            step()

    @property
    def _steps(self) -> list[Callable[[], Any]]:
        """What a replay calls. Whoever watches the operations of this thread sees every one."""
        watched = _get_current_dispatch_mode() is not None
        return self._single_steps if watched else self._joined_steps

    @functools.cached_property
    def _single_steps(self) -> list[Callable[[], Any]]:
        return singly(self._recorder.nodes, self._recorder.origins)

    @functools.cached_property
    def _joined_steps(self) -> list[Callable[[], Any]]:
        return joined(self._recorder.nodes)

    def add(self, step: Callable[[], Any]) -> None:
        """During capture: one more thing that a replay does."""
        self._recorder.nodes.append(step)

    def add_marker(self, event: HostEvent | VirtualEvent) -> None:
        """During capture: a replay passes `event` here. DeviceError for a second time."""
        if event in self._markers:
            raise recorded_twice(event)
        self._markers.append(event)

        def passed() -> None:
            assert self._stream is not None
            event.pass_armed(self._stream)

        self.add(passed)


def _run_again(fn: Callable[[], torch.Tensor], fixed: torch.Tensor) -> None:
    value = fn()
    if value.shape != fixed.shape or value.dtype != fixed.dtype:
        raise DeviceError(
            f"the function of a break gave {tuple(value.shape)} {value.dtype} in a replay, "
            f"and {tuple(fixed.shape)} {fixed.dtype} at capture",
            next="capture a graph for each shape",
        )
    fixed.copy_(value)
