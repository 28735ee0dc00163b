"""Threads of which one runs at a time, the next one drawn from a seed: any interleaving, again.

A baton goes from participant to participant: the host thread and one thread per stream. It can
move at each ATen operation of submitted work and at each call of the device's protocol. What a
participant waits for is a predicate, and whoever passes the baton on looks at all of them; so the
order is a function of the seed alone, and a state in which nobody can go on is seen at once.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

from warcore.device.operations import OperationMode
from warcore.device.turns import LOOK_UP_S, ThreadTurns
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

STAY_AT_OPERATION = 0.9
"""How likely the running thread keeps the baton at an ATen operation: there are hundreds a step."""
STAY_AT_CALL = 0.5
"""The same at a call of the device's protocol, where most races begin."""
WEIGHTS = (1.0, 6.0, 36.0)
RESHUFFLE = 0.05
"""Now and then each participant draws a new weight, so that one stream falls far behind another:
with equal chances every thread advances at much the same pace, and late reads stay hidden."""


class Participant:
    """One thread of a seeded device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.gate = threading.Lock()
        self.gate.acquire()
        self.holds: Callable[[], bool] | None = None
        """What it waits for; None: it can go on."""
        self.describe: Callable[[], str] = lambda: "its turn"
        self.error: DeviceError | None = None


class SeededTurns(ThreadTurns):
    """Passes a baton. Closing, or a Ctrl-C, sets everybody free: then threads run as they like."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed).random  # noqa: S311 - a schedule, not a secret
        self._local = threading.local()
        self._host = Participant("the host")
        self._participants = [self._host]
        self._local.me = self._host
        self._free = False

    def enlist(self, name: str, holds: Callable[[], bool], describe: Callable[[], str]) -> Any:
        """A participant for a thread about to start, which at first waits for `holds`.

        The creator calls it: the order of participants must not depend on how threads start.
        """
        participant = Participant(name)
        participant.holds, participant.describe = holds, describe
        self._participants.append(participant)
        return participant

    def begin(self, participant: Participant) -> None:
        """On the new thread: be `participant`, and wait for the first turn."""
        self._local.me = participant
        participant.gate.acquire()
        participant.holds = None

    def block(
        self, holds: Callable[[], bool], describe: Callable[[], str], *, patient: bool = False
    ) -> None:
        if not self._free:
            self._pass_on(holds, describe)
        if self._free:
            super().block(holds, describe, patient=patient)

    def changed(self) -> None:
        if self._free:
            super().changed()

    def switch(self) -> None:
        # A foreign thread may look at things; it has no part in the order, so it draws nothing.
        if self._free or not hasattr(self._local, "me"):
            return
        if self._draw() >= STAY_AT_CALL:
            self._pass_on(None, None)

    def at_operation(self) -> None:
        """A point between two ATen operations of submitted work."""
        if not self._free and self._draw() >= STAY_AT_OPERATION:
            self._pass_on(None, None)

    def close(self) -> None:
        super().close()
        self._set_free()

    def _set_free(self) -> None:
        with self.condition:
            self._free = True
            for participant in self._participants:
                if participant.gate.locked():
                    participant.gate.release()
            self.condition.notify_all()

    def _pass_on(
        self, holds: Callable[[], bool] | None, describe: Callable[[], str] | None
    ) -> None:
        me = self._me()
        me.holds = holds
        if describe is not None:
            me.describe = describe
        try:
            chosen = self._choose()
            if chosen is not me:
                self._hand_over(me, chosen)
        except BaseException:
            # An interrupted thread runs on without the baton: the order is lost anyway, and
            # nobody may stay parked for want of a turn.
            self._set_free()
            raise
        me.holds = None
        error, me.error = me.error, None
        if error is not None:
            raise error

    def _hand_over(self, me: Participant, chosen: Participant) -> None:
        # NOTE: under the lock, because a gate that _set_free has opened must not be opened again.
        with self.condition:
            if self._free:
                return
            chosen.gate.release()
        while not me.gate.acquire(timeout=LOOK_UP_S):
            pass

    def _me(self) -> Participant:
        me = getattr(self._local, "me", None)
        if me is None:
            raise DeviceError(
                "a seeded device is used from one host thread, and this is another: "
                f"{threading.current_thread().name}",
                next="use it from the thread that made it, or use --host threads",
            )
        return me  # type: ignore[no-any-return]

    def _choose(self) -> Participant:
        """Who goes on: drawn by weight from those that can; the host with an error if none can."""
        runnable = [p for p in self._participants if p.holds is None or p.holds()]
        if not runnable:
            self._host.error = self._deadlock()
            return self._host
        if len(runnable) == 1:
            return runnable[0]
        if self._draw() < RESHUFFLE:
            for participant in self._participants:
                participant.weight = WEIGHTS[int(self._draw() * len(WEIGHTS))]
        point = self._draw() * sum(p.weight for p in runnable)
        for participant in runnable:
            point -= participant.weight
            if point < 0:
                return participant
        return runnable[-1]

    def _deadlock(self) -> DeviceError:
        waits = "; ".join(f"{p.name} waits for {p.describe()}" for p in self._participants)
        return DeviceError(f"nobody can go on: {waits}")


class SwitchAtOperations(OperationMode):
    """On a stream's thread: every ATen operation is a point where another thread may go on."""

    def __init__(self, turns: SeededTurns) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._turns = turns

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._turns.at_operation()
        return func(*args, **(kwargs or {}))
