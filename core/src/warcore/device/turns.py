"""How a host thread waits: by a predicate, under one of three rules of who may run.

Every wait of the host device is `Turns.block(holds, describe)`. The predicates are monotone: once
true they stay true, so a thread that was woken need not be the first to look.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable


LOOK_UP_S = 0.25
"""How long a sleep lasts at most. A signal that arrives just before a thread falls asleep does not
wake it: without this, a Ctrl-C in that moment would be seen only when the wait is over."""


class Turns(ABC):
    """Who runs next, and how one waits for somebody else."""

    @abstractmethod
    def block(
        self, holds: Callable[[], bool], describe: Callable[[], str], *, patient: bool = False
    ) -> None:
        """Return once `holds()`; DeviceError with `describe()` if that can never be.

        patient: go on waiting although the device closes, because closing makes it true.
        """

    @abstractmethod
    def changed(self) -> None:
        """Some predicate may have become true."""

    @abstractmethod
    def switch(self) -> None:
        """A point of the program where another thread may go on."""

    @abstractmethod
    def close(self) -> None:
        """From now on nobody waits for what only new work could bring."""


class InlineTurns(Turns):
    """One thread does everything: what does not hold now never will."""

    def block(
        self,
        holds: Callable[[], bool],
        describe: Callable[[], str],
        *,
        patient: bool = False,  # noqa: ARG002
    ) -> None:
        if not holds():
            raise DeviceError(
                f"{describe()} can never be reached: an inline device runs work when it is "
                "submitted, and nothing that is still to come can be waited for",
                next="wait after the work that brings it, or use --host threads",
            )

    def changed(self) -> None:
        return

    def switch(self) -> None:
        return

    def close(self) -> None:
        return


class ThreadTurns(Turns):
    """Threads run freely; one condition wakes whoever waits.

    The state behind a predicate is changed first and `changed` called after, while a waiter looks
    and falls asleep under the condition's lock: no wake-up is lost.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.closed = False

    def block(
        self, holds: Callable[[], bool], describe: Callable[[], str], *, patient: bool = False
    ) -> None:
        with self.condition:
            while not holds():
                if self.closed and not patient:
                    raise DeviceError(f"the device was closed while waiting for {describe()}")
                self.condition.wait(LOOK_UP_S)

    def changed(self) -> None:
        with self.condition:
            self.condition.notify_all()

    def switch(self) -> None:
        return

    def close(self) -> None:
        with self.condition:
            self.closed = True
            self.condition.notify_all()
