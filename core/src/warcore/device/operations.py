"""Seeing the ATen operations of a thread, at the least cost, and whose code calls them."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_HERE = os.path.dirname(__file__)  # noqa: PTH120 - text prefixes, here and below
CORE = os.path.dirname(_HERE) + os.sep  # noqa: PTH120
_OWN = (
    os.path.dirname(torch.__file__) + os.sep,  # noqa: PTH120
    _HERE + os.sep,
    os.path.join(CORE, "testkit") + os.sep,  # noqa: PTH118
)
_SUBMITTED = os.path.join(_HERE, "outcome.py")  # noqa: PTH118
"""Where a stream begins work that was submitted to it. Frames further out are not of that work."""


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that stays out of the compiler's way.

    Newer torch wraps `__torch_dispatch__` so that its compiler does not trace into it. The wrapper
    imports that compiler when it is first called, which takes seconds, and costs microseconds per
    operation; the compiler leaves frames under such a mode alone anyway.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@attrs.frozen
class Origin:
    """A call, and the line of somebody's code that made it."""

    operation: str
    file: str
    line: int


class _Replaying(threading.local):
    """Of each thread: the origin of the recorded call that a replay is making."""

    origin: Origin | None = None
    """None: it is not known, or no such call is being made."""


replaying = _Replaying()
_asking: set[object] = set()
"""Who wants to know where calls come from. Adding and discarding are atomic."""


@contextmanager
def noting_origins() -> Iterator[None]:
    """Let captures, on all threads, note the origin of each call: its replays then tell it."""
    asking = object()
    _asking.add(asking)
    try:
        yield
    finally:
        _asking.discard(asking)


def origins_wanted() -> bool:
    """Whether anybody wants to know where the calls of a capture come from."""
    return bool(_asking)


def replay_call(origin: Origin, step: Callable[[], Any]) -> None:
    """Make a recorded call, and let who watches know where it was recorded."""
    replaying.origin = origin
    try:
        step()
    finally:
        replaying.origin = None


@functools.cache
def operation_name(func: Any) -> str:
    """`aten.index_select` for any of its overloads."""
    name = str(getattr(func, "overloadpacket", func))
    return "aten.item" if name == "aten._local_scalar_dense" else name


def frame_of_use(*own: str) -> FrameType:
    """Whose code calls the running operation: the innermost frame of neither torch nor the core.

    In submitted work that has none, the core's own. own: paths in which more files begin that do
    not count.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the call that leads here
    core: FrameType | None = None
    own = (*_OWN, *own)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name == _SUBMITTED and core is not None:
            return core
        if not name.startswith(own):
            if not name.startswith(CORE):
                return frame
            core = core or frame
        frame = frame.f_back
    return core or frame


def line_of_use() -> str:
    """The line of somebody's code that calls the running operation, as the end of a message."""
    frame = frame_of_use()
    path, number = frame.f_code.co_filename, frame.f_lineno
    return f"\n{path}:{number}: {linecache.getline(path, number).strip()}"
