"""The process's fault handler: which addresses are watched, and what was touched of them."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections import deque
from typing import Final, NamedTuple

from warcore.errors import WarcoreError
from warcore.testkit.detectors import faultcode
from warcore.testkit.detectors.faultcode import State
from warcore.testkit.detectors.segv import Possession, libc, refused

PAGE: Final = 4096
NOTHING, READS, EVERYTHING = 0, 1, 3
"""What a page lets happen: PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE."""

_WRITE: Final = 2
_PATIENCE: Final = 10_000


class Hit(NamedTuple):
    """One fault within a watched range."""

    number: int
    """Counted from 1, over all ranges of the process."""
    offset: int
    """Bytes from the start of the range."""
    write: bool
    thread: int
    """The native id."""
    label: int
    instruction: int
    """The address of what touched the page."""


class _Labelled(threading.local):
    slot: int | None = None


class FaultHandler:
    """The one handler of this process: `fault_handler()`.

    It is in force from the first `acquire` to the last `release`, and its code and state stay for
    good: whoever has read our address from the kernel may call it at any time.
    """

    def __init__(self) -> None:
        self._mprotect = libc().mprotect
        base = self._map(faultcode.CODE_BYTES + ctypes.sizeof(State))
        self._state = State.from_address(base + faultcode.CODE_BYTES)
        self._possession = Possession(base, self._state)
        self._users = 0
        self._taken = 0
        self.stolen: list[str] = []
        """Who took the signal away from a guard that was in force, each time that one noticed."""
        self.lost = 0
        """How many faults nobody can name, because too many came between two looks."""
        self.generation = 0
        """Another one in a forked child, where no guard of the parent is in force."""
        # NOTE: reentrant, for a fork from within; memory that dies takes no lock at all.
        self._lock = threading.RLock()
        # NOTE: as long as it is for good. Garbage may be collected, and `forget` called, in the
        # middle of a walk over it, and a dictionary that changes its size then raises.
        self._owners: list[tuple[int, int, list[Hit]] | None] = [None] * faultcode.RANGES
        self._free: deque[int] = deque(range(faultcode.RANGES))
        self._labelled = _Labelled()
        self._free_labels: deque[int] = deque(range(faultcode.LABELS))
        self._places: list[tuple[str, str]] = [("", "")]
        self._numbers: dict[tuple[str, str], int] = {}
        os.register_at_fork(
            before=self._lock.acquire,
            after_in_parent=self._lock.release,
            after_in_child=self._leave_in_child,
        )

    # ---- who has the signal ----------------------------------------------------------------------

    def acquire(self) -> None:
        """Let faults come here, until as many calls of `release`."""
        with self._lock:
            if not self._users:
                self._possession.begin()
            self._users += 1

    def release(self) -> None:
        """With the last call, whoever had the signal before has it again."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._possession.end()

    def take(self) -> str | None:
        """Get the signal back if somebody took it away since `acquire`: who did, as far as known.

        They go on to hear of every fault that is not within a watched range.
        """
        with self._lock:
            return self._possession.take()

    def thief(self) -> str | None:
        """Who has the signal in our place, as far as known; None: we have it."""
        with self._lock:
            return self._possession.thief()

    # ---- what is watched -------------------------------------------------------------------------

    def watch(self, start: int, stop: int) -> tuple[int, list[Hit]]:
        """Watch these addresses, whole pages: the number to `forget`, and where hits are put.

        WarcoreError if there are too many.
        """
        with self._lock:
            try:
                number = self._free.popleft()
            except IndexError:
                raise WarcoreError(
                    f"more than {faultcode.RANGES} guarded buffers are alive",
                    next="let go of the tensors of earlier guards",
                ) from None
            hits: list[Hit] = []
            self._owners[number] = start, stop, hits
            place = self._state.ranges[number]
            # NOTE: in this order; an empty range matches nothing.
            place.start = start
            place.stop = stop
            self._state.ranges_used = max(self._state.ranges_used, number + 1)
            return number, hits

    def forget(self, number: int) -> None:
        """The memory goes. May be called at any moment, from the collection of garbage."""
        self._state.ranges[number].stop = 0
        self._owners[number] = None
        self._free.append(number)

    def protect(self, start: int, size: int, what: int) -> None:
        """Let the pages allow `what`. Python's lock is kept: another thread might hold it long."""
        if self._mprotect(start, size, what):
            raise refused("mprotect")

    @property
    def watched(self) -> int:
        """How many ranges are watched."""
        return sum(owner is not None for owner in self._owners)

    @property
    def written(self) -> int:
        """How many faults there were so far. Costs next to nothing."""
        return int(self._state.written)

    def sort(self) -> int:
        """Bring what was noted since the last call to the lists that `watch` gave.

        How many of `written` are there; the last may be in another thread's hands still.
        """
        with self._lock:
            written = self._state.written
            if written - self._taken > faultcode.RECORDS:
                self.lost += written - self._taken - faultcode.RECORDS
                self._taken = written - faultcode.RECORDS
            while self._taken < written:
                record = self._state.records[self._taken % faultcode.RECORDS]
                if not self._is_whole(record):
                    break
                at, write = record.address, bool(record.error & _WRITE)
                self._taken += 1
                rest = record.thread, record.label, record.instruction
                if record.number != self._taken:
                    self.lost += 1
                    continue
                for start, hits in self._owners_of(at):
                    hits.append(Hit(self._taken, at - start, write, *rest))
            return self._taken

    def _owners_of(self, address: int) -> list[tuple[int, list[Hit]]]:
        return [
            (start, hits)
            for start, stop, hits in filter(None, self._owners[: self._state.ranges_used])
            if start <= address < stop
        ]

    def _is_whole(self, record: faultcode.Record) -> bool:
        """Whether a record that was begun is written; another thread may be at it this moment."""
        for _ in range(_PATIENCE):
            if record.number > self._taken:
                return True
            os.sched_yield()
        return False

    # ---- who touches -----------------------------------------------------------------------------

    def label(self, place: tuple[str, str] | None) -> None:
        """From now on, faults of the calling thread are of this (stream, phase); None: of none."""
        mine = self._labelled
        if place is None:
            if mine.slot is not None:
                self._state.labels[mine.slot].thread = 0
                self._free_labels.append(mine.slot)
                mine.slot = None
            return
        number = self._numbers.get(place) or self._number(place)
        if mine.slot is not None:
            self._state.labels[mine.slot].label = number
        elif self._free_labels:
            mine.slot = self._free_labels.popleft()
            entry = self._state.labels[mine.slot]
            entry.label = number
            entry.thread = threading.get_native_id()

    def place(self, label: int) -> tuple[str, str]:
        """(stream, phase) of a label; empty for none."""
        return self._places[label]

    def _number(self, place: tuple[str, str]) -> int:
        with self._lock:
            number = self._numbers.setdefault(place, len(self._places))
            if number == len(self._places):
                self._places.append(place)
        return number

    # ---- the rest --------------------------------------------------------------------------------

    def _leave_in_child(self) -> None:
        """A forked child is no part of what is guarded: its views are open, the signal as before.

        It may build guards of its own.
        """
        if self._users:
            for start, stop, _ in filter(None, self._owners):
                self.protect(start, stop - start, EVERYTHING)
            self._users = 0
            self._possession.end()
        self.generation += 1
        self._taken = self._state.written
        for place in self._state.labels:
            place.thread = 0
        self._lock.release()

    def _map(self, size: int) -> int:
        """Memory for the code and the state, never given back."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = libc().mmap(None, size, EVERYTHING, flags, -1, 0)
        if base in {None, ctypes.c_size_t(-1).value}:
            raise refused("mmap")
        ctypes.memmove(base, faultcode.CODE, len(faultcode.CODE))
        self.protect(base, faultcode.CODE_BYTES, mmap.PROT_READ | mmap.PROT_EXEC)
        return int(base)


@functools.cache
def fault_handler() -> FaultHandler:
    """The handler of this process. WarcoreError where its memory cannot be had."""
    return FaultHandler()


def stolen() -> tuple[str, ...]:
    """Who took the signal away in this process so far, whoever's guard it was."""
    return tuple(fault_handler().stolen) if fault_handler.cache_info().currsize else ()
