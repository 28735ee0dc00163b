"""The host device: a CPU that behaves like an asynchronous accelerator.

Streams are queues, events are positions in them, graphs are recorded ATen calls. Three rules say
who runs: `threads` (freely), `seeded` (one at a time, drawn from a seed), `inline` (the caller).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from warcore.device.base import Device
from warcore.device.hostevent import HostEvent, HostLatch, ThreadState
from warcore.device.hoststream import InlineStream
from warcore.device.seeded import SeededTurns
from warcore.device.threadstream import ThreadStream
from warcore.device.turns import InlineTurns, ThreadTurns
from warcore.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.base import Stream
    from warcore.device.graph import Graph, GraphPool
    from warcore.device.hostpool import HostPool
    from warcore.device.turns import Turns

    _Memory = Callable[[str, tuple[int, ...], torch.dtype], tuple[torch.Tensor, torch.Tensor]]

HostMode = Literal["threads", "inline", "seeded"]


class HostDevice(Device):
    """Streams on the CPU.

    mode: "threads", one thread per stream, running freely; "inline", work runs on the caller's
    thread when submitted, and a wait that nothing can end is a DeviceError; "seeded", threads of
    which one runs at a time, in an order that is a function of `seed`, and a deadlock is a
    DeviceError that lists what everybody waits for.
    """

    name: ClassVar[str] = "host"

    def __init__(self, mode: HostMode = "threads", seed: int = 0) -> None:
        self.mode = mode
        self.seed = seed
        self.supports_graphs = True
        self.supports_external_events = True
        self.closed = False
        self.memory: _Memory | None = None
        """Makes `shared_memory`, set before an engine is wired; None: one tensor is both views."""
        self.local = ThreadState()
        self.turns: Turns = _turns(mode, seed)
        self.streams: list[InlineStream | ThreadStream] = []
        self._events = 0
        self._latches = 0

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def stream(self, name: str) -> Stream:
        if self.closed:
            raise DeviceError(f"the device is closed: it makes no stream {name}")
        kind = InlineStream if self.mode == "inline" else ThreadStream
        stream = kind(self, name)
        self.streams.append(stream)
        return stream

    def event(self, *, external: bool = False) -> HostEvent:
        self._events += 1
        return HostEvent(self, self._events, external=external)

    def latch(self) -> HostLatch:
        self._latches += 1
        return HostLatch(self.turns, self._latches)

    def graph_pool(self) -> HostPool:
        from warcore.device.hostpool import HostPool

        return HostPool()

    def graph(self, pool: GraphPool | None = None) -> Graph:
        from warcore.device.hostgraph import HostGraph

        return HostGraph(self, self.graph_pool() if pool is None else pool)  # type: ignore[arg-type]

    def current_stream(self) -> Stream | None:
        return self.local.stream

    @property
    def capturing(self) -> bool:
        return self.local.capture is not None

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        # A normal tensor even within submitted work: the host writes it outside inference mode.
        with torch.inference_mode(mode=False):
            return torch.empty(count, dtype=dtype)

    def shared_memory(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        allocate = super().shared_memory if self.memory is None else self.memory
        return allocate(name, shape, dtype)

    def synchronize(self) -> None:
        if self.local.stream is not None:
            raise DeviceError(
                f"synchronize() within the work of stream {self.local.stream.name} "
                "would wait for its own end",
                next="synchronize outside submitted work",
            )
        self.turns.block(
            lambda: all(stream.idle for stream in self.streams), lambda: "every stream to be idle"
        )

    def close(self) -> None:
        self.closed = True
        self.turns.close()
        threads: list[Any] = [s for s in self.streams if isinstance(s, ThreadStream)]
        for stream in threads:
            stream.drop_queue()
        for stream in threads:
            stream.join()


def host_device(text: str) -> HostDevice:
    """The host device that `--host` names: "threads", "inline" or "seeded:N".

    ConfigError for any other text.
    """
    if text == "threads":
        return HostDevice("threads")
    if text == "inline":
        return HostDevice("inline")
    mode, _, seed = text.partition(":")
    if mode == "seeded" and seed.isdecimal():
        return HostDevice("seeded", int(seed))
    raise ConfigError(
        f"no host device is called {text!r}",
        next="--host auto|threads|inline|seeded:N with N a whole number, such as seeded:7",
    )


def _turns(mode: HostMode, seed: int) -> Turns:
    if mode == "inline":
        return InlineTurns()
    if mode == "threads":
        return ThreadTurns()
    if mode == "seeded":
        return SeededTurns(seed)
    raise ConfigError(
        f"no mode of the host device is called {mode!r}", next="threads, inline or seeded"
    )
