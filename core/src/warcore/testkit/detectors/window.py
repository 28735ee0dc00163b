"""Window: in which nobody may touch the buffers of a page guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from typing_extensions import Self

    from warcore.testkit.detectors.fault import Fault
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.detectors.guarded import GuardedBuffer


@attrs.define(eq=False)
class Window:
    """The readers' views of a set of buffers, closed from a point to another.

    Use one again and again, `close()` and `open()` in turn, or as a context manager; then an
    EFAULT that leaves it becomes a WarcoreError. Not to be closed twice at a time; different
    windows may overlap.
    """

    guard: PageGuard
    stream: str
    """For whose work it is closed."""
    names: tuple[str, ...] | None
    """The buffers; None: all that there are when it closes."""
    writes_only: bool = False
    """Whether reads are welcome in it."""
    closed: tuple[GuardedBuffer, ...] = ()
    """What it keeps closed now."""

    def close(self) -> None:
        """From here on nobody may touch the buffers. WarcoreError if the guard is not in force.

        In a forked child it does nothing: the parent's guard is not of this process.
        """
        self.guard.close(self)

    def open(self) -> list[Fault]:
        """Everybody may touch them again. What was touched of them in between.

        What was touched meanwhile of other buffers goes to `PageGuard.faults` only.
        """
        return self.guard.open(self)

    def rearm(self) -> None:
        """Close the pages again that a touch has opened, so that the next touch is seen too."""
        with self.guard.lock:
            for buffer in self.closed:
                buffer.rearm()

    def __enter__(self) -> Self:
        self.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        why = None if error is None else self.guard.explain(error)
        self.open()
        if why is not None:
            raise why from error
