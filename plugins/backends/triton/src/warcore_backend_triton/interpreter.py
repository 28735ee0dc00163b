"""Where kernels can run: compiled on a GPU, or on the CPU in Triton's interpreter."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

CAPABILITY: Final = (8, 0)
"""The oldest GPUs: Ampere. Those before have no bfloat16."""
OFF: Final = frozenset({"", "0", "false", "off", "no", "n"})

LAUNCHING: Final = threading.RLock()
"""NOTE: the interpreter keeps the place in the grid in one object for all threads, and replaces
functions of the language while a kernel runs: two kernels at once get into each other's way."""


def why_not(device: torch.device) -> list[str]:
    """Why no kernel can run on `device`; [] if they can."""
    if find_spec("triton") is None:
        return ["Triton is not installed (pip install triton)"]
    if device.type == "cpu":
        if interprets():
            return []
        return ["a CPU without Triton's interpreter (set TRITON_INTERPRET=1 before Python starts)"]
    if device.type != "cuda":
        return [f"{device.type} devices (it runs on CUDA, and on a CPU in Triton's interpreter)"]
    reasons = []
    if interprets():
        reasons.append("a GPU while Triton's interpreter is on (unset TRITON_INTERPRET)")
    found = _capability(device)
    if found < CAPABILITY:
        reasons.append(f"a GPU of compute capability {found[0]}.{found[1]} (8.0 or newer)")
    return reasons


def interprets() -> bool:
    """Whether kernels run in the interpreter.

    Triton decides when a kernel is decorated, its own ones too: once it is imported, the variable
    changes nothing any more.
    """
    if "triton.language.standard" not in sys.modules:
        return os.environ.get("TRITON_INTERPRET", "").lower() not in OFF
    standard = sys.modules["triton.language.standard"]
    return type(standard.max).__name__ == "InterpretedFunction"


def _capability(device: torch.device) -> tuple[int, int]:
    import torch

    return torch.cuda.get_device_capability(device)
