"""What a device owes to the runner and the scheduler: streams, events, tickets, latches.

Graphs are in graph.py.

One piece of runner and scheduler code runs on every device. Rules that hold on all of them:

- Work of one stream runs in the order of submission. Streams are ordered only by tickets.
- `record` and `wait` act now when called from inside work of that stream, and are enqueued
  otherwise.
- A ticket is (event, generation): waiting for it can never bind to another record of the event.
- Submitted work runs under `torch.inference_mode`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from typing_extensions import Self

    from warcore.device.graph import Graph, GraphPool
    from warcore.device.observer import Observer


class Pending(ABC):
    """The outcome of submitted work."""

    __slots__ = ()

    @abstractmethod
    def result(self) -> Any:
        """Block the host until the function has returned; its value, or raise what it raised.

        On CUDA the function has launched its kernels by then, not finished them.
        """

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the function has returned or raised."""

    @property
    @abstractmethod
    def error(self) -> BaseException | None:
        """What the function raised, if it is done and did."""


@attrs.frozen(eq=True)
class Ticket:
    """One record of one event."""

    event: Event
    generation: int

    def query(self) -> bool:
        """Whether the stream has passed this record. Never blocks."""
        return self.event.reached(self.generation)

    def synchronize(self) -> None:
        """Block the host until the stream has passed this record."""
        self.event.synchronize(self.generation)


class Event(ABC):
    """A position in a stream, recorded again and again; each record is a Ticket.

    external: the record is a node of a captured graph; each replay re-arms it.
    """

    external: bool

    @abstractmethod
    def record(self, stream: Stream | None = None) -> Ticket:
        """Record at the present position of `stream` (default: the current stream).

        Within a capture, an external event becomes a node of the graph: the returned ticket then
        belongs to the capture and is never reached: waiting for it is a DeviceError.
        """

    @abstractmethod
    def rearm(self) -> Ticket:
        """External events: the ticket that the next replay will reach.

        Call it before replay, in the same submitted work: program order is what ties the two.
        """

    @abstractmethod
    def disarm(self) -> bool:
        """Let go of the tickets that no replay has reached; whether there were any.

        Call it in the submitted work that armed them, once nothing of the replay runs any more: it
        failed, or was never called. Here they count as passed, so that nobody waits in vain.
        """

    @abstractmethod
    def reached(self, generation: int) -> bool:
        """Whether the record of that generation has been passed."""

    @abstractmethod
    def synchronize(self, generation: int | None = None) -> None:
        """Block the host until that generation (default: the newest) has been passed."""

    def query(self) -> bool:
        """Whether the newest record has been passed; True if there was none."""
        return self.reached(self.generation)

    @property
    @abstractmethod
    def generation(self) -> int:
        """The newest generation handed out; 0 before the first record."""


class Stream(ABC):
    """An ordered queue of device work."""

    name: str

    @abstractmethod
    def submit(self, fn: Callable[..., Any], *args: Any) -> Pending:
        """Run `fn(*args)` in stream order. Never raises what fn raises: `Pending.result` does.

        CUDA: runs at once on the calling thread, inside the stream's context.
        Host threads: on the stream's own thread. A failed function does not stop the stream.
        """

    @abstractmethod
    def wait(self, ticket: Ticket) -> None:
        """Work submitted to this stream later starts only after `ticket` is reached."""


class Latch(ABC):
    """A host-side flag that submitted work can wait for: set once, never cleared."""

    @abstractmethod
    def set(self) -> None:
        """Open it; later calls change nothing."""

    @abstractmethod
    def wait(self) -> None:
        """Block the calling host code (or stream thread) until it is open."""

    @property
    @abstractmethod
    def is_set(self) -> bool:
        """Whether it is open."""


class Device(ABC):
    """Makes streams and all that belongs to them. Used as a context manager it closes itself."""

    name: ClassVar[str]
    """"host", "cuda" or "virtual"."""
    warms_up: ClassVar[bool] = False
    """Whether a function must have run once before it is captured: kernels that load late."""
    supports_graphs: bool
    supports_external_events: bool
    streams: Sequence[Stream]
    """All that were made, the oldest first."""
    observer: Observer | None = None
    """Who watches, as `watched_by` says. None costs one comparison at each place that reports."""

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """Where tensors of this device live."""

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """A new stream, distinct from every other of this device."""

    @abstractmethod
    def event(self, *, external: bool = False) -> Event:
        """A new event."""

    @abstractmethod
    def latch(self) -> Latch:
        """A new latch."""

    @abstractmethod
    def graph_pool(self) -> GraphPool:
        """A new, empty pool. DeviceError where `supports_graphs` is False."""

    @abstractmethod
    def graph(self, pool: GraphPool | None = None) -> Graph:
        """A new, empty graph in `pool` (default: a pool of its own). DeviceError as above."""

    @abstractmethod
    def current_stream(self) -> Stream | None:
        """The stream whose submitted work is running on the calling thread, if any."""

    @property
    @abstractmethod
    def capturing(self) -> bool:
        """Whether a graph is recording what the calling thread does."""

    @abstractmethod
    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that an asynchronous copy may read: pinned where the device needs that."""

    def shared_memory(
        self,
        name: str,  # noqa: ARG002 - for a device that tells the buffers apart
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(writer, reader): two views of new zeroed memory that streams share.

        Who writes uses the one and who reads the other, for a test may want to tell them apart.
        """
        import torch

        memory = torch.zeros(shape, dtype=dtype, device=self.torch_device)
        return memory, memory

    @contextmanager
    def watched_by(self, observer: Observer) -> Iterator[None]:
        """Within, `observer` sees what happens here. DeviceError if somebody watches already."""
        if self.observer is not None:
            raise DeviceError(
                "this device is watched already", next="close the other observer first"
            )
        self.observer = observer
        try:
            yield
        finally:
            self.observer = None

    def phase(self, name: str) -> None:
        """Tell the observer, if there is one, that the running work goes on to its phase `name`."""
        if self.observer is not None:
            self.observer.phase(self.current_stream(), name)

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until every stream is idle."""

    @abstractmethod
    def close(self) -> None:
        """Finish what runs, drop what waits, end all threads. Idempotent; never hangs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
