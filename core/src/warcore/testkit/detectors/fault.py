"""Fault: one touch of a closed page, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.testkit.access import Access
from warcore.testkit.detectors.faults import PAGE
from warcore.testkit.detectors.segv import code_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from warcore.testkit.access import Kind
    from warcore.testkit.detectors.faults import Hit
    from warcore.testkit.detectors.guarded import GuardedBuffer


@attrs.frozen
class Fault:
    """One touch of a closed page."""

    buffer: str
    kind: Kind
    offset: int
    """The byte whose touch opened the page, from the start of the buffer.

    A kernel may begin anywhere in a page: what it read before this byte is not known either.
    """
    stop: int
    """The end of its page, or of the buffer in its last one: how far the touch went is unknown."""
    stream: str
    """Whose work it was; empty for the host.

    Exact on a thread that runs work of a stream. A worker thread that Python does not know, as of
    a kernel with several threads, counts to the stream for which the window was closed.
    """
    phase: str
    """Of the step, where a `Whereabouts` watches the device."""
    thread: str
    """Its name in Python; "native thread N" for one that Python does not know."""
    code: str
    """The library whose instruction touched the page, and the function if it exports it."""

    def access(self) -> Access:
        """The same in the form that all detectors share."""
        return Access(
            buffer=self.buffer,
            kind=self.kind,
            start=self.offset,
            stop=self.stop,
            stream=self.stream,
            phase=self.phase,
            seen_by=frozenset({"guard"}),
        )

    @classmethod
    def of(
        cls,
        hit: Hit,
        buffer: GuardedBuffer,
        place: tuple[str, str],
        threads: Mapping[int | None, str],
    ) -> Self:
        """From what the handler noted; `threads` names those that Python knows."""
        page_end = (hit.offset // PAGE + 1) * PAGE
        stream, phase = place
        if not hit.label and hit.thread not in threads:
            stream = buffer.behalf
        return cls(
            buffer=buffer.name,
            kind="write" if hit.write else "read",
            offset=hit.offset,
            stop=min(page_end, buffer.nbytes) if hit.offset < buffer.nbytes else page_end,
            stream=stream,
            phase=phase,
            thread=threads.get(hit.thread, f"native thread {hit.thread}"),
            code=code_at(hit.instruction),
        )
