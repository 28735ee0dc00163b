"""GuardTouches: what a page guard sees of a device's work, told to a race detector.

Attribution sees calls, and loses whoever has an address. The guard sees touches, whoever makes
them, and so there is nothing of guarded memory that the race detector does not hear of.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from warcore.device import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from warcore.device import Pending, Stream, Ticket
    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.detectors.races import RaceDetector
    from warcore.testkit.detectors.window import Window


class GuardTouches(Observer):
    """Watches an inline host device, and tells `detector` of what `window` has seen while `closed`.

    In whole pages. Of a page that was read and then written between two reports of the device, the
    guard sees the first only: a window for writes alone sees the second.
    """

    def __init__(self, window: Window, names: Mapping[str, str], detector: RaceDetector) -> None:
        """names: what the detector calls the buffers of the window."""
        self.strays: list[Fault] = []
        """Touches on threads that run no work of the device: nothing tells what is before them."""
        self._window, self._names = window, names
        self._detector = detector
        self._then = Observer()

    def before(self, observer: Observer) -> Self:
        """Itself, with `observer` to hear of everything behind it."""
        self._then = observer
        return self

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Within, all is seen."""
        self._window.close()
        try:
            yield
            self.look()
        finally:
            self._window.open()

    def look(self) -> None:
        """What came so far was made by who runs on this thread now."""
        faults = self._window.guard.look()
        if not faults:
            return
        here = threading.current_thread().name
        for fault in faults:
            if fault.thread != here and fault.thread in self._python_threads():
                self.strays.append(fault)
                continue
            access = attrs.evolve(
                fault.access(),
                buffer=self._names[fault.buffer],
                operation=fault.code,
                stream="",
                phase="",
            )
            self._detector.see(access)
        self._window.rearm()

    @staticmethod
    def _python_threads() -> set[str]:
        """The others are those of kernels, which the calling thread waits for."""
        return {thread.name for thread in threading.enumerate()}

    # ---- the device reports: order changes only behind what came before --------------------------

    def submitted(self, stream: Stream, pending: Pending) -> None:
        self.look()
        self._then.submitted(stream, pending)

    def started(self, stream: Stream, pending: Pending) -> None:
        self.look()
        self._then.started(stream, pending)

    def finished(self, stream: Stream, pending: Pending) -> None:
        self.look()
        self._then.finished(stream, pending)

    def joined(self, pending: Pending) -> None:
        self.look()
        self._then.joined(pending)

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        self.look()
        self._then.recorded(stream, ticket)

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        self.look()
        self._then.waited(stream, ticket)

    def phase(self, stream: Stream | None, name: str) -> None:
        self.look()
        self._then.phase(stream, name)
