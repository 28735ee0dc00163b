"""Seeing the ATen operations of a thread, at the least cost."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that stays out of the compiler's way.

    Newer torch wraps `__torch_dispatch__` so that its compiler does not trace into it. The wrapper
    imports that compiler when it is first called, which takes seconds, and costs microseconds per
    operation; the compiler leaves frames under such a mode alone anyway.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
