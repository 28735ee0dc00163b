"""Threads that a plugin starts: what they touch, and when, no detector of streams can tell."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from warcore.device.operations import CORE
from warcore.testkit.packages.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from warcore.testkit.access import Place

_PYTHON = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - text prefixes, here and below
_PACKAGES = os.path.dirname(os.path.dirname(torch.__file__)) + os.sep  # noqa: PTH120
_NOT_ITS_OWN = (os.path.dirname(torch.__file__) + os.sep, CORE)  # noqa: PTH120


@contextmanager
def threads_started(
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[dict[str, Place]]:
    """Where, until the context ends, code starts threads that is neither torch's nor the core's.

    By the thread's name. within: the context in which such a thread runs.
    """
    places: dict[str, Place] = {}
    owner: Any = threading.Thread
    start = owner.start

    def started(thread: threading.Thread) -> None:
        frame = _starter(sys._getframe(1))  # noqa: SLF001 - there is no other way to see who calls
        if frame is not None and not frame.f_code.co_filename.startswith(_NOT_ITS_OWN):
            places[thread.name] = place_of(frame.f_code.co_filename, frame.f_lineno)
            _run_within(thread, within)
        start(thread)

    owner.start = started
    try:
        yield places
    finally:
        owner.start = start


def _run_within(thread: Any, within: Callable[[], AbstractContextManager[None]]) -> None:
    run = thread.run

    def entered() -> None:
        with within():
            run()

    thread.run = entered


def _starter(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not of Python's own library, which starts threads for others."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PYTHON) or file.startswith(_PACKAGES):
            return frame
        frame = frame.f_back
    return None
