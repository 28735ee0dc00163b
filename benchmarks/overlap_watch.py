"""Who was busy when in a real run: an observer of the device, and marks in the scheduler."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from warcore.device import Device


@attrs.define
class Step:
    """The host's times of one iteration of the loop, in seconds of its own clock."""

    wall: float
    begun: float
    written: float = 0.0
    """The last of its writes was submitted; 0: it had none."""
    launched: float = 0.0
    collecting: float = 0.0
    waited: float = 0.0
    """The results that it collects were there."""
    ended: float = 0.0


class Watch:
    """The device's observer, and the times of the host.

    Work is numbered by the step that submitted it. Appending to a list needs no lock, whichever
    thread does it.
    """

    def __init__(self, device: Device) -> None:
        self.steps: list[Step] = []
        self.work: list[tuple[int, str, Any, Any, list[Any]]] = []
        """(step, stream, start, end, records in between)."""
        self._cuda = device.name == "cuda"
        self._host = threading.get_ident()
        self._away = 0.0
        self._running: dict[int, tuple[int, str, Any, list[Any], float]] = {}
        self._numbers: dict[int, tuple[Any, int]] = {}

    def clock(self) -> float:
        """Seconds on the host, but those in which its thread was a stream's."""
        return time.perf_counter() - self._away

    def wrap(self, core: Any) -> None:
        """See when the scheduler has launched, and when it begins to collect."""
        launch, collect = core.launch, core.collect

        def launched(*args: Any, **kwargs: Any) -> Any:
            value = launch(*args, **kwargs)
            self.steps[-1].launched = self.clock()
            return value

        def collected(*args: Any) -> Any:
            self.steps[-1].collecting = self.steps[-1].waited = self.clock()
            return collect(*args)

        core.launch, core.collect = launched, collected

    def begin(self) -> None:
        now = time.perf_counter()
        self.steps.append(Step(now, now - self._away))

    def end(self) -> None:
        self.steps[-1].ended = self.clock()

    # ---- what the device reports ----

    def submitted(self, stream: Any, pending: Any) -> None:
        if not self.steps or self.steps[-1].launched or threading.get_ident() != self._host:
            return  # the barrier, or work within work: none of a step's writes
        # The work is kept with its number, or another one might get its id.
        self._numbers[id(pending)] = pending, len(self.steps) - 1
        if stream.name == "schedule":
            self.steps[-1].written = self.clock()

    def started(self, stream: Any, pending: Any) -> None:
        _, number = self._numbers.get(id(pending), (None, -1))
        self._running[id(pending)] = number, stream.name, self._stamp(), [], time.perf_counter()

    def finished(self, stream: Any, pending: Any) -> None:  # noqa: ARG002
        if id(pending) not in self._running:
            return  # it began before anybody watched
        number, name, start, records, began = self._running.pop(id(pending))
        self.work.append((number, name, start, self._stamp(), records))
        mine = threading.get_ident() == self._host
        if mine and not self._cuda and not self._running:
            self._away += time.perf_counter() - began

    def recorded(self, stream: Any, ticket: Any) -> None:  # noqa: ARG002
        for _, name, _, records, _ in list(self._running.values()):
            if name == stream.name == "forward":
                records.append(self._stamp())

    def joined(self, pending: Any) -> None:  # noqa: ARG002
        self._host_goes_on()

    def waited(self, stream: Any, ticket: Any) -> None:  # noqa: ARG002
        if stream is None:
            self._host_goes_on()

    def phase(self, stream: Any, name: str) -> None: ...

    def _host_goes_on(self) -> None:
        if self.steps and self.steps[-1].collecting:
            self.steps[-1].waited = self.clock()

    def _stamp(self) -> Any:
        """Now, as the current stream sees it."""
        if not self._cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
