"""Ctrl-C in a process that is the command: whenever it is pressed, the exit code is 130.

Threads that run native code may outlive the command. An interpreter that is on its way out ends
them by force, which aborts the process; so an interrupted command leaves without that, its output
flushed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
"""Exit code, that of a process which SIGINT ended."""


def take() -> None:
    """From here on a press ends this process; left alone where somebody else has taken SIGINT."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, press)


def press(_: int, __: FrameType | None) -> None:
    """The first: unwind and tell. A second, while that goes on, does not wait for it."""
    signal.signal(signal.SIGINT, leave_at_once)
    raise KeyboardInterrupt


def leave_at_once(_: int, __: FrameType | None) -> None:
    """Tell and leave, whatever is still running, without unwinding."""
    told()
    stream = sys.__stderr__
    if stream is not None:
        # A progress bar has hidden the cursor and stands in an unfinished line. Not through the
        # stream: the press may have come in the middle of a write to it.
        clear = "\r\x1b[2K\x1b[?25h" if stream.isatty() else ""
        with suppress(OSError):
            os.write(stream.fileno(), f"{clear}interrupted\n".encode())
    leave(INTERRUPTED)


def told() -> None:
    """The person knows: another press changes nothing."""
    if signal.getsignal(signal.SIGINT) in {press, leave_at_once}:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def caused(error: BaseException | None) -> bool:
    """Whether a press is behind `error`: native code makes errors of its own out of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def end(code: int) -> None:
    """After the command: an interrupted process leaves here, another lets the next press kill it.

    The interpreter's exit runs code of torch and others, which is no place for an exception.
    """
    if code == INTERRUPTED:
        leave(code)
    if signal.getsignal(signal.SIGINT) in {press, leave_at_once}:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def leave(code: int) -> NoReturn:
    """End the process without the interpreter's exit; what was printed is written."""
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe; or the press came in the middle of a write to this very stream.
        with suppress(Exception):
            stream.flush()
    os._exit(code)
