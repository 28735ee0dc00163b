"""Processes that a check leaves behind: they become the nursery's children, and end with the check.

A plugin may start a process in a session of its own, whose parent then ends: no group and no parent
leads to it any more. On Linux a process can ask to be given such children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt() -> None:
    """Become the parent of all orphans among this process's descendants, where that is possible."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """Kill every child of this process, and theirs as they become ours, until there is none."""
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    """The children of the main thread, which starts them all; [] where the kernel does not tell."""
    me = os.getpid()
    try:
        told = Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in told.split()]
