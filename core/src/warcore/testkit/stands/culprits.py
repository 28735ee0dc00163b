"""Culprits: who touches the tables of a stand too late, by operation and line.

The page guard has seen that somebody did. Attribution names the operations, stepping the line of
what is none; where neither can, there is the line that started the thread.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import attrs

from warcore.testkit.detectors.attribution import Attribution
from warcore.testkit.detectors.naming import Extent, Naming
from warcore.testkit.detectors.ownthreads import threads_started
from warcore.testkit.detectors.stepping import Stepping
from warcore.testkit.packages.definitions import line_of
from warcore.testkit.packages.sources import homes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from warcore.batch import ForwardBatch
    from warcore.device import Observer
    from warcore.testkit.access import Access, Place
    from warcore.testkit.detectors.endingfence import End
    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.stands.stand import Stand


class ClosedToCalls(Exception):
    """A step failed of a system call that was handed closed memory."""

    def __init__(self, why: str, where: str) -> None:
        super().__init__(why)
        self.where = where
        """The line that made the call."""


@attrs.frozen
class Culprit:
    """One touch."""

    access: Access
    code: str = ""
    """The library in which the guard has seen it."""
    more: str = ""
    """What else there is to say of it, as the end of a sentence."""


class Culprits:
    """Of the backend `cls`, on memory of `guard`. A context manager: it sees who starts threads."""

    def __init__(self, guard: PageGuard, cls: Any) -> None:
        self._guard, self._cls = guard, cls
        self._window = guard.window("forward")
        self._stepping = Stepping(guard, homes_of(cls))
        self._started: dict[str, Place] = {}
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        self._started = self._entered.enter_context(threads_started())
        self._entered.enter_context(self._stepping)
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered.close()

    def of(self, stand: Stand, batch: ForwardBatch) -> list[Culprit]:
        """Who touches the readers' view in a step, from the declared end until its batch is let go.

        The step is run once, and more often if somebody does. ClosedToCalls if a system call saw
        the view closed.
        """
        # What a backend does in its first step alone has to be named in that one. Whatever it does
        # again is named better then: what it imports in its first step is not watched yet.
        first = [] if stand.launches else self._named(stand, batch)
        faults = self._late(stand, batch)
        if not faults:
            return [self._placed(Culprit(access), [], again=False) for access in first]
        accesses = self._named(stand, batch)
        found = [Culprit(access) for access in accesses or [unnamed(faults[0])]]
        if any(culprit.access.place is None for culprit in found):
            # Threads of its own were stepped from their start.
            known = faults
            if any(fault.thread == _here() for fault in faults):
                known = [*faults, *self._stepped(stand, batch)]
            found = [self._placed(each, known, again=bool(accesses)) for each in found]
        return [attrs.evolve(found[0], code=faults[0].code), *found[1:]]

    @contextmanager
    def _seen(self) -> Iterator[None]:
        """Within, the window may be closed; it is opened behind, and its faults have their lines.

        ClosedToCalls if a system call saw it closed.
        """
        try:
            yield
        except Exception as error:
            why = self._guard.explain(error) if self._window.closed else None
            if why is None:
                raise
            raise ClosedToCalls(why.what, line_of(error, self._cls)) from error
        finally:
            self._stepping.note(self._window.open())

    def _late(self, stand: Stand, batch: ForwardBatch) -> list[Fault]:
        """The faults of a step."""
        known = len(self._guard.faults)
        with self._seen():
            stand.run(copy(batch), self._window.close)
        return self._guard.faults[known:]

    def _named(self, stand: Stand, batch: ForwardBatch) -> list[Access]:
        """The touches after the declared end, in order, by operation and line.

        The readers' view is closed again behind each call, so that the guard has seen every one: a
        call that could have touched the tables and did not is not among them.
        """
        guard, window = self._guard, self._window
        extents = {
            name: Extent(str(guard.name_of(table)), [(0, table.nbytes)])
            for name, table in stand.tables.named.items()
        }
        naming = Naming(extents, _here())

        def since() -> list[tuple[Fault, str]]:
            found = guard.look()
            if found:
                window.rearm()
            return [(fault, fault.phase) for fault in found]

        def tell(access: Access) -> None:
            if window.closed:
                naming.told(access, since())

        with self._seen():
            watched(stand, copy(batch), Attribution(stand.tables.named, tell), window.close)
            return naming.finish(since())

    def _stepped(self, stand: Stand, batch: ForwardBatch) -> list[Fault]:
        """The faults of the same step, line by line."""
        known = len(self._guard.faults)
        with self._seen(), self._stepping.here(self._window):
            stand.run(copy(batch), self._window.close)
        return self._guard.faults[known:]

    def _placed(self, culprit: Culprit, faults: list[Fault], *, again: bool) -> Culprit:
        """With the line, if one of the faults of the same thread and buffer tells it."""
        access = culprit.access
        if access.place is not None:
            return culprit
        thread = access.stream or _here()
        mine = [
            fault
            for fault in faults
            if fault.thread == thread and fault.buffer.partition("#")[0] == access.buffer
        ]
        places = [place for place in map(self._stepping.place_of, mine) if place is not None]
        more = ""
        if thread in self._started:
            started = self._started[thread]
            more = f", on a thread that is started at {started.file}:{started.line}"
            places.append(started)
        if not again and not places:
            more += "; the same step did not do it again: it hangs on a count or on time"
        return Culprit(attrs.evolve(access, place=places[0] if places else None), more=more)


def unnamed(fault: Fault) -> Access:
    """A touch that only the guard has seen; its stream is the thread, if that is another one."""
    access = fault.access()
    name = fault.buffer.partition("#")[0]
    thread = "" if fault.thread == _here() else fault.thread
    return attrs.evolve(access, buffer=name, operation=fault.code, stream=thread)


def watched(stand: Stand, batch: ForwardBatch, watcher: Observer, end: End | None = None) -> None:
    """Run a step that `watcher` hears of too; `end` is called at the declared end."""
    with stand.watched_by(watcher):
        stand.run(batch, end)


def _here() -> str:
    return threading.current_thread().name
