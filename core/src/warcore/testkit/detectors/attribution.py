"""Attribution: which operation, at which line of whose code, touches a watched buffer.

It sees ATen calls, what hands a tensor's values or its address to Python, and the loads and stores
of Triton kernels in Triton's interpreter. It names; it never judges: a call counts as touching what
its schema lets it touch, and a pointer that nobody asked torch for is out of its sight.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from warcore.device import Observer
from warcore.device.operations import noting_origins
from warcore.testkit.detectors.ranges import Watched
from warcore.testkit.detectors.seeing import Eyes
from warcore.testkit.detectors.sightings import AddressTaken, Sightings, Work
from warcore.testkit.detectors.triton_reads import ignore, listen
from warcore.testkit.detectors.used import note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from typing_extensions import Self

    from warcore.device import Pending, Stream
    from warcore.testkit.access import Access

SEEN_BY: Final = "attribution"


class _Thread(threading.local):
    """Of each thread: how many times it is watched, with which eyes, and what runs on it."""

    def __init__(self) -> None:
        self.entered = 0
        self.eyes: Eyes | None = None
        self.asking: AbstractContextManager[None] | None = None
        self.works: list[Work] = [Work()]


class Attribution(Observer):
    """Watches `buffers`: on a thread while entered there, on a device's streams as its observer.

    buffers: name to tensor, or to several where one buffer is seen at several addresses. Only the
    elements of the tensor count, not what else lies in its storage.
    tell: hears of each single touch, on the thread that made it, as soon as it is made.

    While it watches, host graphs replay call by call, and captures note where each call came from:
    it is the line of the capture that a replay's touches have. Without `noting_origins` or this at
    their capture, they have the line that replays. The interpreter's kernels run one at a time, and
    unseen by other modes.
    """

    def __init__(
        self,
        buffers: Mapping[str, torch.Tensor | Sequence[torch.Tensor]],
        tell: Callable[[Access], None] | None = None,
    ) -> None:
        note(SEEN_BY)
        self._watched = Watched(buffers)
        self._sightings = Sightings(SEEN_BY, tell)
        self._thread = _Thread()
        self._missing: dict[str, None] = {}

    @property
    def accesses(self) -> list[Access]:
        """What was touched: each buffer, kind, operation, line, stream and phase once.

        The host's first, then each stream's by its name, in the order of the first sighting.
        """
        return self._sightings.accesses()

    @property
    def addresses_taken(self) -> list[AddressTaken]:
        """Where a watched buffer's address was given away: what follows from there is not seen."""
        return self._sightings.addresses()

    @property
    def missing(self) -> tuple[str, ...]:
        """What it could not see with, and why."""
        return tuple(self._missing)

    def __enter__(self) -> Self:
        """Watch the calling thread. May nest."""
        here = self._thread
        if not here.entered:
            eyes = Eyes(self._watched, self._sightings, lambda: here.works[-1])
            here.eyes = eyes
            here.asking = noting_origins()
            here.asking.__enter__()
            eyes.open()
            why_not = listen(eyes.lanes)
            if why_not:
                self._missing[f"Triton's interpreter: not available: {why_not}"] = None
        here.entered += 1
        return self

    def __exit__(self, *exc: object) -> None:
        here = self._thread
        here.entered -= 1
        if not here.entered:
            assert here.eyes is not None
            assert here.asking is not None
            ignore(here.eyes.lanes)
            here.eyes.close()
            here.asking.__exit__(None, None, None)
            here.eyes = here.asking = None

    # ---- the device reports ----------------------------------------------------------------------

    def started(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """The thread works for `stream` now."""
        self._thread.works.append(Work(stream.name))
        self.__enter__()

    def finished(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """The thread is back at what it did before."""
        self.__exit__()
        self._thread.works.pop()

    def phase(self, stream: Stream | None, name: str) -> None:  # noqa: ARG002
        """What this thread touches from here on, until its work ends, it does in phase `name`."""
        works = self._thread.works
        works[-1] = Work(works[-1].stream, name)
