"""A graph on the host: the ATen calls of one run, with their storages, replayed in place.

Capture runs the function once and keeps every call with its arguments and results. A replay calls
them again so that each result lands in the memory of the first run: views need no replay, in-place
calls are repeated as they are, others go through `out=` or are copied back (hostcalls.py). So a
replay computes exactly what eager execution would, on whatever the inputs hold by then.
"""

from __future__ import annotations

import linecache
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from warcore.device import hostcalls
from warcore.device.base import Graph
from warcore.device.operations import OperationMode
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.base import Stream
    from warcore.device.host import HostDevice
    from warcore.device.hostevent import HostEvent
    from warcore.device.virtual import VirtualDevice
    from warcore.device.virtualevent import VirtualEvent

T = TypeVar("T")

_OWN = (os.path.dirname(torch.__file__), os.path.dirname(__file__))  # noqa: PTH120 - text prefixes


class HostGraph(Graph):
    """Recorded ATen calls. It keeps all intermediate results of the captured function alive."""

    def __init__(self, device: HostDevice | VirtualDevice) -> None:
        self._device = device
        self._nodes: list[Callable[[], Any]] = []
        self._captured = False
        self._stream: Stream | None = None
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def __len__(self) -> int:
        """How many calls a replay makes."""
        return len(self._nodes)

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
        recorder = _Recorder(self._nodes)
        local.capture = self
        try:
            with _NoHostReads(), recorder:
                value = fn()
        except BaseException:
            self._nodes.clear()
            raise
        finally:
            local.capture = None
        self._captured = True
        self._nbytes = recorder.nbytes
        return value

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
        self._stream = stream
        for node in self._nodes:
            node()

    def add(self, node: Callable[[], Any]) -> None:
        """During capture: one more thing that a replay does."""
        self._nodes.append(node)

    def add_marker(self, event: HostEvent | VirtualEvent) -> None:
        """During capture: a replay passes `event` here."""

        def passed() -> None:
            assert self._stream is not None
            event.pass_armed(self._stream)

        self._nodes.append(passed)


class _Recorder(OperationMode):
    """Sees each ATen call of the capture, runs it, and plans its replay."""

    def __init__(self, nodes: list[Callable[[], Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._nodes = nodes
        self._kept: dict[int, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """The memory of all results that are not views of what was there before."""
        return sum(t.untyped_storage().nbytes() for t in self._kept.values())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if hostcalls.is_composite(func):
            # Under inference mode a composite call arrives whole. Its parts are what can be
            # judged and replayed: a `.item()` inside it, or an `out=` of its matrix product.
            with self:
                return func.decompose(*args, **kwargs)
        why = hostcalls.why_not(func, args, kwargs)
        if why is not None:
            raise _refusal(func, why)
        out = func(*args, **kwargs)
        if hostcalls.reads_out(out):
            raise _refusal(func, "its value leaves the device")
        fresh = hostcalls.fresh_tensors(args, kwargs, out)
        for tensor in fresh:
            self._kept[tensor.untyped_storage()._cdata] = tensor  # noqa: SLF001 - identity
        node = hostcalls.plan(func, args, kwargs, fresh)
        if node is not None:
            self._nodes.append(node)
        return out


class _NoHostReads(TorchFunctionMode):
    """Refuses what reads a tensor's memory without an ATen call."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in {"tolist", "numpy", "__array__"}:
            raise _refusal(f"Tensor.{func.__name__}", "its value leaves the device")
        return func(*args, **(kwargs or {}))


def _refusal(func: Any, why: str) -> DeviceError:
    return DeviceError(
        f"{func} cannot be captured: {why}{_where()}",
        next="keep it out of the captured function: do it before, and write the result into "
        "static memory",
    )


def _where() -> str:
    """The line of the user's code that is running, for a message."""
    frame = sys._getframe(1)  # noqa: SLF001 - the call that leads here
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    path, number = frame.f_code.co_filename, frame.f_lineno
    return f"\n{path}:{number}: {linecache.getline(path, number).strip()}"
