"""What all streams of the host device share, and the one that runs work at once."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from warcore.device.base import Stream
from warcore.device.outcome import Outcome
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.base import Ticket
    from warcore.device.host import HostDevice
    from warcore.device.hostevent import HostEvent


class HostStream(Stream):
    """An ordered queue of host work. `enqueue` takes bare steps: records and waits."""

    def __init__(self, device: HostDevice, name: str) -> None:
        self.name = name
        self.device = device

    def __repr__(self) -> str:
        return f"stream {self.name}"

    @abstractmethod
    def acts_now(self) -> bool:
        """Whether the stream's present position is here, on the calling thread."""

    @abstractmethod
    def enqueue(self, step: Callable[[], None]) -> None:
        """Run `step` after everything submitted before it."""

    def wait(self, ticket: Ticket) -> None:
        device = self.device
        if device.local.capture is not None:
            raise DeviceError(
                f"a wait for {ticket.event!r} within a capture could not be replayed",
                next="wait before the replay",
            )
        event: HostEvent = ticket.event  # type: ignore[assignment]
        if self.acts_now():
            event.await_ticket(ticket, self)
        else:
            event.check(ticket.generation)
            self.enqueue(partial(event.await_ticket, ticket, self))
            device.turns.switch()


class InlineStream(HostStream):
    """Runs work at once on the caller's thread, but never inside other work of its own."""

    def __init__(self, device: HostDevice, name: str) -> None:
        super().__init__(device, name)
        self._busy = False
        # One object for all work: a stream's work never nests, and making one costs a microsecond.
        self._inference = torch.inference_mode()
        self._later: deque[Callable[[], None] | Outcome] = deque()

    def acts_now(self) -> bool:
        return not self._busy or self.device.local.stream is self

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._busy

    def submit(self, fn: Callable[..., Any], *args: Any) -> Outcome:
        device = self.device
        if device.closed:
            raise DeviceError(f"the device is closed: {self!r} takes no more work")
        pending = Outcome(device, self, fn, args)
        if device.observer is not None:
            device.observer.submitted(self, pending)
        if self._busy:
            self._later.append(pending)
        else:
            self._run(pending)
        return pending

    def enqueue(self, step: Callable[[], None]) -> None:
        self._later.append(step)

    def _run(self, first: Outcome) -> None:
        local = self.device.local
        outer, local.stream = local.stream, self
        self._busy = True
        try:
            if torch.is_inference_mode_enabled():
                self._run_all(first)
            else:
                with self._inference:
                    self._run_all(first)
        finally:
            self._busy = False
            local.stream = outer

    def _run_all(self, first: Outcome) -> None:
        try:
            first.run()
            while self._later:
                item = self._later.popleft()
                if isinstance(item, Outcome):
                    item.run()
                else:
                    item()
        except BaseException:
            # A wait that can never end, or an interrupt: what was to come after it cannot run.
            while self._later:
                item = self._later.popleft()
                if isinstance(item, Outcome):
                    item.drop("what came before it on the stream failed")
            raise
