"""A host stream with a thread of its own, free-running or one participant of a seeded device."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from warcore.device.hoststream import HostStream
from warcore.device.outcome import Outcome
from warcore.device.seeded import SeededTurns, SwitchAtOperations
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.device.host import HostDevice
    from warcore.device.turns import ThreadTurns


class ThreadPending(Outcome):
    """Work on a stream's own thread."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        # Whoever asks again and again until it is true must let the others run.
        self.device.turns.switch()  # type: ignore[attr-defined]
        return self._done

    def run(self) -> None:
        try:
            super().run()
        except BaseException:  # noqa: BLE001 - kept for result(); the stream's thread goes on
            return
        finally:
            self.device.turns.changed()  # type: ignore[attr-defined]

    def _await(self) -> None:
        device: HostDevice = self.device  # type: ignore[assignment]
        waiter = device.local.stream
        if waiter is self.stream:
            super()._await()
        # The host may wait through close(): what runs finishes and what is queued is dropped.
        # Streams may not: two of them may wait for each other.
        device.turns.block(
            lambda: self._done, lambda: f"the result of {self!r}", patient=waiter is None
        )


class ThreadStream(HostStream):
    """A queue with a daemon thread, free-running or one participant of a seeded device."""

    def __init__(self, device: HostDevice, name: str) -> None:
        super().__init__(device, name)
        self._turns: ThreadTurns = device.turns  # type: ignore[assignment]
        self._queue: deque[Callable[[], None] | ThreadPending] = deque()
        self._running = False
        self._intra_op_threads = torch.get_num_threads()
        self._participant: Any = None
        if isinstance(self._turns, SeededTurns):
            self._participant = self._turns.enlist(
                f"stream {name}", self._has_something, self._nothing
            )
        self._thread = threading.Thread(target=self._work, name=f"warcore-{name}", daemon=True)
        self._thread.start()

    def acts_now(self) -> bool:
        return self.device.local.stream is self

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._queue and not self._running

    def submit(self, fn: Callable[..., Any], *args: Any) -> ThreadPending:
        device = self.device
        pending = ThreadPending(device, self, fn, args)
        if device.observer is not None:
            device.observer.submitted(self, pending)
        self._put(pending)
        self._turns.switch()
        return pending

    def enqueue(self, step: Callable[[], None]) -> None:
        self._put(step)

    def drop_queue(self) -> None:
        """Drop what has not begun. The device is closed: nothing can be added any more."""
        while True:
            try:
                item = self._queue.popleft()
            except IndexError:
                break
            if isinstance(item, ThreadPending):
                item.drop("the device was closed before it ran")
        self._turns.changed()

    def join(self) -> None:
        """Wait for the thread's end, except on that thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _put(self, item: Callable[[], None] | ThreadPending) -> None:
        with self._turns.condition:
            if self._turns.closed:
                raise DeviceError(f"the device is closed: {self!r} takes no more work")
            self._queue.append(item)
            self._turns.condition.notify_all()

    def _has_something(self) -> bool:
        return bool(self._queue) or self._turns.closed

    def _nothing(self) -> str:
        return "nothing (it is idle)"

    def _work(self) -> None:
        # The number of intra-op threads is a thread's own setting; without this a stream would
        # use every core and fake an overlap that is none. Asking first makes torch do its lazy
        # initialisation of this thread, which later would overwrite the setting.
        torch.get_num_threads()
        torch.set_num_threads(self._intra_op_threads)
        self.device.local.stream = self
        turns = self._turns
        if isinstance(turns, SeededTurns):
            turns.begin(self._participant)
            mode: Any = SwitchAtOperations(turns)
        else:
            mode = nullcontext()
        with torch.inference_mode(), mode:
            while self._step():
                pass

    def _step(self) -> bool:
        """Run the next item; False when the device has closed."""
        self._turns.block(self._has_something, self._nothing, patient=True)
        # NOTE: running before popped, so that `idle` is never true in between.
        self._running = True
        try:
            item = self._queue.popleft()
        except IndexError:
            self._running = False
            return False
        try:
            if isinstance(item, ThreadPending):
                item.run()
            else:
                item()
        except DeviceError:
            # Only a wait that the closing device cut short: what came after it was dropped.
            if not self._turns.closed:
                raise
        finally:
            self._running = False
            self._turns.changed()
        return True
