"""What a device with graphs owes to those who capture: graphs, and the memory that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore.device.base import Event

T = TypeVar("T")


class GraphPool(ABC):
    """Memory that graphs share.

    What a captured function has let go of may serve the rest of its graph and every later graph
    of the pool; what is still held by anybody is left alone. So a replay may overwrite the results
    of another graph's replay that nobody has copied or kept a tensor of since its capture, and the
    graphs of one pool must replay one after another, on one stream.
    """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that the pool keeps, in bytes."""


class Graph(ABC):
    """Recorded device work that replays into the same memory."""

    @abstractmethod
    def capture(self, fn: Callable[[], T]) -> T:
        """Record `fn` on the current stream (inside submitted work); its value, static memory.

        DeviceError, with the operation and the line of code, for what no replay could repeat: a
        value that leaves the device, a shape that depends on data, memory that is replaced.
        """

    @abstractmethod
    def outside(self, fn: Callable[[], torch.Tensor]) -> torch.Tensor:
        """During this graph's capture: run `fn` eagerly now, and eagerly again in each replay.

        A break in the graph. Its value is copied to one address for life, which is returned.
        """

    @abstractmethod
    def replay(self) -> None:
        """Run the recorded work on the current stream."""


def recorded_twice(event: Event) -> DeviceError:
    """What a graph says that holds `event` already.

    The first of two places would pass the ticket, and what it is waited for may come later.
    """
    return DeviceError(
        f"{event!r} is in this graph already: a replay would pass its ticket at the first place",
        next="record an event once in a graph; a graph runner hands ctx.marker to ctx.step only",
    )
