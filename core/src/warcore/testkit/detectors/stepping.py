"""Stepping: which line of a plugin's Python touches guarded memory, asked after each of its lines.

For what no operation explains: an array or a pointer made long ago, and threads of its own.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warcore.testkit.packages.sources import is_home, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from typing_extensions import Self

    from warcore.testkit.access import Place
    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.detectors.window import Window


class Stepping:
    """Sees the lines of `homes`: on threads that start while it is entered, and `here`.

    It costs a call for each of their lines, and nothing else may trace those threads meanwhile.
    A context manager.
    """

    def __init__(self, guard: PageGuard, homes: Sequence[str]) -> None:
        self._guard = guard
        self._homes = homes
        self._entered = False
        self._before: Any = None
        self._window: Window | None = None
        self._count = 0
        self._lines: dict[str, tuple[str, int]] = {}
        """By thread, the line that it is at."""
        self._places: dict[int, Place] = {}
        """By id of the fault, which the guard keeps."""

    def __enter__(self) -> Self:
        self._entered, self._count = True, self._guard.count
        self._before = threading.gettrace()
        threading.settrace(self._called)
        return self

    def __exit__(self, *exc: object) -> None:
        # Threads that go on find out with their next line.
        self._entered = False
        threading.settrace(self._before)

    @contextmanager
    def here(self, window: Window) -> Iterator[None]:
        """Within, the calling thread too; what a line has opened of `window` is closed again."""
        before, self._window = sys.gettrace(), window
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            self._window = None

    def note(self, faults: Iterable[Fault]) -> None:
        """These have just come: a thread looks before it leaves a line, so it is still there."""
        for fault in faults:
            line = self._lines.get(fault.thread)
            place = None if line is None else place_of(*line)
            if place is not None:
                self._places.setdefault(id(fault), place)

    def place_of(self, fault: Fault) -> Place | None:
        """The line at which a thread that was seen has made it."""
        return self._places.get(id(fault))

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._entered or not is_home(frame.f_code.co_filename, self._homes):
            return None
        return self._stepped(frame, event, arg)

    def _stepped(self, frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG002
        if not self._entered:
            return None
        if self._count != self._guard.count:
            self._ask()
        seen: FrameType | None = frame
        if event == "return":
            seen = frame.f_back
            while seen is not None and not is_home(seen.f_code.co_filename, self._homes):
                seen = seen.f_back
        name = threading.current_thread().name
        if seen is None:
            self._lines.pop(name, None)
        else:
            self._lines[name] = seen.f_code.co_filename, seen.f_lineno
        return self._stepped

    def _ask(self) -> None:
        self._count = self._guard.count
        self.note(self._guard.look())
        if self._window is not None:
            self._window.rearm()
