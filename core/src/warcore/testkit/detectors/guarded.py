"""GuardedBuffer: a tensor in pages of its own, mapped twice, of which one view can be closed."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

from warcore.errors import WarcoreError
from warcore.testkit.detectors.faults import EVERYTHING, NOTHING, PAGE, READS, fault_handler

if TYPE_CHECKING:
    import torch

    from warcore.testkit.detectors.faults import FaultHandler

_TRIAL_S = 60


class GuardedBuffer:
    """A zeroed tensor twice: `writer` is always open, `reader` only while nobody has it closed.

    Both show the same memory, in pages that hold nothing else. The memory lives as long as the
    buffer or any tensor over it. A forked child shares it instead of getting a copy.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, handler: FaultHandler
    ) -> None:
        import torch

        self.name = name
        count = torch.Size(shape).numel()
        self.nbytes = count * dtype.itemsize
        self.size = -(-max(self.nbytes, 1) // PAGE) * PAGE
        """Of the pages, in bytes."""
        views = [_raw(memory) for memory in mapped_twice(name, self.size)]
        self.writer, self.reader = (
            torch.frombuffer(view, dtype=dtype, count=max(count, 1))[:count].view(shape)
            for view in views
        )
        self.start = ctypes.addressof(views[1])
        """The address of the reader's view."""
        self.behalf = ""
        """The stream for whose work the view was closed last."""
        self._handler = handler
        number, self.hits = handler.watch(self.start, self.start + self.size)
        """What was touched, not yet told to anybody."""
        self._gone: list[int] = []
        """Not empty: nobody holds the reader's view any more, and its memory is gone."""
        # NOTE: before the memory goes, for the view holds it.
        weakref.finalize(views[1], _goes, handler, number, self._gone).atexit = False
        self._closings: list[int] = []

    @property
    def closed(self) -> bool:
        """Whether anybody has it closed. Single pages may have been opened by a touch."""
        return bool(self._closings)

    def close(self, *, writes_only: bool = False) -> None:
        """From now on a touch of the reader's view is noted; each page of it once, until `rearm`.

        writes_only: reads are welcome. Several closings at a time count, and the strictest holds.
        WarcoreError if it is no longer where it was.
        """
        if not self.is_inside(self.reader):
            raise WarcoreError(
                f"{self.name} lies in its guarded pages no longer: its tensor has other memory",
                next="let it lie: share_memory_(), set_() and resize_() move a tensor",
            )
        self._closings.append(READS if writes_only else NOTHING)
        self.rearm()

    def open(self, *, writes_only: bool = False) -> None:
        """Take one closing back."""
        self._closings.remove(READS if writes_only else NOTHING)
        self.rearm()

    def open_all(self) -> None:
        """Take all of them back."""
        self._closings.clear()
        self.rearm()

    def rearm(self) -> None:
        """Close again what was opened by a touch, so that the next touch is noted too."""
        if not self._gone:
            self._handler.protect(self.start, self.size, min(self._closings, default=EVERYTHING))

    def is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lies in the reader's view.

        What `.to()`, `.contiguous()` or `.clone()` made of it may lie elsewhere: its reads are
        seen by nobody.
        """
        import torch

        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        first = storage.data_ptr()
        return self.start <= first and first + storage.nbytes() <= self.start + self.size


def _goes(handler: FaultHandler, number: int, gone: list[int]) -> None:
    handler.forget(number)
    gone.append(number)


def mapped_twice(name: str, size: int) -> tuple[mmap.mmap, mmap.mmap]:
    """Zeroed memory at two addresses. `size` is in whole pages."""
    file = os.memfd_create(f"warcore-{name}")  # type: ignore[attr-defined,unused-ignore]
    try:
        os.ftruncate(file, size)
        return mmap.mmap(file, size), mmap.mmap(file, size)
    finally:
        os.close(file)


def _raw(memory: mmap.mmap) -> Any:
    return (ctypes.c_char * len(memory)).from_buffer(memory)


@functools.cache
def supported() -> str | None:
    """Why this platform has no page guard; None if it has one.

    Tried once, in a process of its own, which takes a fifth of a second.
    """
    return lacking() or _tried()


def lacking() -> str | None:
    """What can be known without a trial."""
    if sys.platform != "linux":
        return f"the page guard needs Linux, and this is {sys.platform}"
    if platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return f"the page guard needs 64-bit x86-64, and this is {platform.machine()}"
    if mmap.PAGESIZE != PAGE:
        return f"the page guard needs pages of {PAGE} bytes, and these have {mmap.PAGESIZE}"
    if not hasattr(os, "memfd_create"):
        return "the page guard needs memfd_create, which this build of Python lacks"
    return None


def _tried() -> str | None:
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    program = f"from {__name__} import trial; trial()"
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, and a program of our own
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRIAL_S,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the page guard could not be tried in a process of its own: {error}"
    if done.returncode == 0 and done.stdout.endswith("seen\n"):
        return None
    said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
    return f"a trial of the page guard ended with status {done.returncode}: {said}"


def trial() -> None:
    """Close a page, read and write it, and see both. For a process of its own: it may die of it."""
    handler = fault_handler()
    _, memory = mapped_twice("trial", PAGE)
    view = _raw(memory)
    start = ctypes.addressof(view)
    _, hits = handler.watch(start, start + PAGE)
    handler.acquire()
    handler.protect(start, PAGE, NOTHING)
    ctypes.string_at(start + 8, 1)
    handler.protect(start, PAGE, NOTHING)
    ctypes.memset(start + 16, 1, 1)
    handler.sort()
    handler.release()
    found = [(hit.offset, hit.write) for hit in hits]
    if found != [(8, False), (16, True)]:
        raise WarcoreError(f"a read and a write of a closed page were seen as {found}")
    print("seen")  # noqa: T201 - to the process that asked
