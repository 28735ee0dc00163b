"""Seeing the ATen operations of a thread, at the least cost."""

from __future__ import annotations

import linecache
import os
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OWN = (os.path.dirname(torch.__file__), os.path.dirname(__file__))  # noqa: PTH120 - text prefixes


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that stays out of the compiler's way.

    Newer torch wraps `__torch_dispatch__` so that its compiler does not trace into it. The wrapper
    imports that compiler when it is first called, which takes seconds, and costs microseconds per
    operation; the compiler leaves frames under such a mode alone anyway.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def line_of_use() -> str:
    """The line of somebody's code that calls the running operation, as the end of a message."""
    frame = sys._getframe(1)  # noqa: SLF001 - the call that leads here
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    path, number = frame.f_code.co_filename, frame.f_lineno
    return f"\n{path}:{number}: {linecache.getline(path, number).strip()}"
