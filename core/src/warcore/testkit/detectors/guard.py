"""PageGuard: sees every touch of a shared buffer in the time in which nobody may touch it.

The buffers live in pages of their own, mapped twice. The scheduler writes through a view that is
always open; what forwards read is a second view, which a window closes: a touch then faults, the
fault is noted, the page is opened, and the program goes on as if nothing had been. So the verdict
does not depend on timing, on the kind of code that reads, or on whether the value matters.

What it cannot see:

- A second touch of a page in one window: the first has opened it. `rearm` closes it again.
- A system call that is handed closed memory: it fails with EFAULT, in whoever made it. `explain`.
- Reads of a copy (`.to()`, `.contiguous()`). `name_of` tells what still lies in a buffer.
- Paths that were not run.

A thread that blocks SIGSEGV, which hardly any does, ends the process at its first late touch.
"""

from __future__ import annotations

import errno
import threading
from operator import itemgetter
from typing import TYPE_CHECKING

from warcore.errors import WarcoreError
from warcore.testkit.detectors.fault import Fault
from warcore.testkit.detectors.faults import fault_handler
from warcore.testkit.detectors.guarded import GuardedBuffer, lacking, supported
from warcore.testkit.detectors.used import note
from warcore.testkit.detectors.whereabouts import Whereabouts
from warcore.testkit.detectors.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from typing_extensions import Self


__all__ = ["PageGuard", "supported"]


class PageGuard:
    """Guarded buffers, and what was touched while they were closed. A context manager.

    Ask `supported()` first: a WarcoreError says here what it says there in advance. On the way out
    all is open, and SIGSEGV is with whom it was before. Guards nest, and take part independently.

    A guard serves one device: `device.memory = guard.allocate`, before an engine is wired.
    """

    def __init__(self) -> None:
        why = lacking()
        if why is not None:
            raise WarcoreError(why, next="run the detectors that need no guarded pages")
        self.buffers: dict[str, GuardedBuffer] = {}
        self.faults: list[Fault] = []
        """All so far, in order. `look` brings it up to date."""
        self.stolen: list[str] = []
        """Who took SIGSEGV away while the guard was in force; it was taken back at each closing.

        A late touch between the theft and the closing would have gone to them: most end the
        process.
        """
        self.lock = threading.RLock()
        self._handler = fault_handler()
        self._generation: int | None = None
        self._looked = 0
        self._lost_before = self._handler.lost
        self.whereabouts = Whereabouts(self._handler)
        """An observer for the device: with it a fault knows its stream and its phase."""

    def __enter__(self) -> Self:
        if self._generation is not None:
            raise WarcoreError("this page guard is in force already", next="make another one")
        self._handler.acquire()
        note("page guard")
        self._generation = self._handler.generation
        return self

    def __exit__(self, *exc: object) -> None:
        if self._in_force:
            with self.lock:
                for buffer in self.buffers.values():
                    buffer.open_all()
            self.look()
            self._handler.release()
        self._generation = None

    @property
    def _in_force(self) -> bool:
        """Not before and after, and not in a forked child."""
        return self._generation == self._handler.generation

    @property
    def count(self) -> int:
        """How many touches of closed pages this process has seen, whoever's guard it was.

        It costs next to nothing: asked after each operation, it tells which one it was.
        """
        return self._handler.written

    @property
    def lost(self) -> int:
        """How many faults of this process came too fast to be kept, since the guard's beginning."""
        return self._handler.lost - self._lost_before

    def allocate(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The writer's and the reader's view of new zeroed memory: for `HostDevice.memory`.

        A second buffer of one name is called NAME#2.
        """
        with self.lock:
            taken = sum(known.partition("#")[0] == name for known in self.buffers)
            buffer = GuardedBuffer(
                f"{name}#{taken + 1}" if taken else name, shape, dtype, self._handler
            )
            self.buffers[buffer.name] = buffer
        return buffer.writer, buffer.reader

    def window(
        self,
        stream: str = "",
        buffers: Iterable[str] | None = None,
        *,
        writes_only: bool = False,
    ) -> Window:
        """A window over these buffers (default: all that there are when it closes).

        stream: for whose work it is closed. writes_only: reads are welcome in it.
        """
        names = None if buffers is None else tuple(buffers)
        for name in names or ():
            if name not in self.buffers:
                raise WarcoreError(
                    f"no guarded buffer is called {name!r}",
                    next=f"there are: {', '.join(self.buffers) or 'none'}",
                )
        return Window(self, stream, names, writes_only)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The buffer in whose reader's view `tensor` lies; None: no touch of it is seen."""
        with self.lock:
            return next((n for n, b in self.buffers.items() if b.is_inside(tensor)), None)

    def look(self) -> list[Fault]:
        """Take note of what came since the last look, and return that."""
        handler = self._handler
        if handler.written == self._looked or not self._in_force:
            return []
        with self.lock:
            self._looked = handler.sort()
            hits = []
            for buffer in self.buffers.values():
                hits += [(buffer.hits.pop(0), buffer) for _ in range(len(buffer.hits))]
            hits.sort(key=itemgetter(0))
            threads = {each.native_id: each.name for each in threading.enumerate()}
            # In a forked child most releases of Python give the number of the parent's thread.
            threads[threading.get_native_id()] = threading.current_thread().name
            new = [Fault.of(hit, buffer, handler.place(hit.label), threads) for hit, buffer in hits]
            self.faults += new
            return new

    def close(self, window: Window) -> None:
        """See `Window.close`."""
        if not self._in_force:
            if self._generation is not None:
                return
            raise WarcoreError("the page guard is not in force", next="with PageGuard() as guard:")
        if window.closed:
            raise WarcoreError("this window is closed already", next="open it, or take another one")
        with self.lock:
            self._note(self._handler.take())
            names = self.buffers if window.names is None else window.names
            window.closed = tuple(self.buffers[name] for name in names)
            for buffer in window.closed:
                buffer.behalf = window.stream
                buffer.close(writes_only=window.writes_only)

    def open(self, window: Window) -> list[Fault]:
        """See `Window.open`."""
        closed, window.closed = window.closed, ()
        if not closed or not self._in_force:
            return []
        with self.lock:
            # The next closing, if there is one, takes it back.
            self._note(self._handler.thief())
            for buffer in closed:
                buffer.open(writes_only=window.writes_only)
            found = self.look()
            names = {buffer.name for buffer in closed} if found else ()
            return [fault for fault in found if fault.buffer in names]

    def _note(self, thief: str | None) -> None:
        """Somebody took the signal away, if it is not None."""
        if thief is not None and thief not in self.stolen:
            self.stolen.append(thief)
            self._handler.stolen.append(thief)

    def explain(self, error: BaseException) -> WarcoreError | None:
        """What a system call failed of that was handed closed memory; None for other errors.

        The kernel does not say which memory it was.
        """
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, OSError) and seen.errno == errno.EFAULT:
                closed = [name for name, each in self.buffers.items() if each.closed]
                names = " or ".join(closed or self.buffers)
                return WarcoreError(
                    f"a system call was handed memory of {names} that is closed: {seen!r}",
                    next="let it read a copy that was made before the declared end",
                )
            seen = seen.__cause__ or seen.__context__
        return None
