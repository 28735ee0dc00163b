"""Memory that a hook makes anew each time it runs: what a graph must not read.

A graph reads the addresses of its capture. Code before the replay that leaves its result in a new
tensor leaves it elsewhere each time, and the replay goes on reading what the capture found: wrong,
and silent. So the hook runs once more under a mode that notes what it allocates, and the capture
runs under one that refuses to read it.

What it cannot see: two buffers of one's own that take turns, memory that is reached without an ATen
call, and Python numbers that the captured code looked at.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from warcore.device.operations import OperationMode, line_of_use
from warcore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class FreshMemory:
    """The memory that a run of `hook` allocated; kept, so that nothing else gets its address."""

    def __init__(self, hook: Callable[[], None], name: str) -> None:
        """Run `hook`, whose name is for messages."""
        self._name = name
        self._kept: dict[int, torch.UntypedStorage] = {}
        self._refuses = True
        with _Noting(self._kept):
            hook()

    @contextmanager
    def refused(self) -> Iterator[None]:
        """DeviceError, with operation and line, if anything within reads one of them."""
        with _Refusing(self._check):
            yield

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Within `refused`: this part is no part of the graph, and may read them."""
        self._refuses = False
        try:
            yield
        finally:
            self._refuses = True

    def _check(self, func: Any, tensors: Iterator[torch.Tensor]) -> None:
        if self._refuses and any(_memory(tensor) in self._kept for tensor in tensors):
            raise DeviceError(
                f"{func} in a graph reads a tensor that {self._name} makes anew each time: a "
                f"replay would read that of the capture{line_of_use()}",
                next="write the result in place, into memory from ctx.static",
            )


class _Noting(OperationMode):
    """Keeps what operations allocate."""

    def __init__(self, kept: dict[int, torch.UntypedStorage]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        # A tensor may be laid over a storage: interpreters of kernels do it to what they are given.
        given |= {each._cdata for each in tree_leaves((args, kwargs)) if _is_storage(each)}  # noqa: SLF001
        for tensor in _tensors(out):
            if _memory(tensor) not in given:
                # Not the tensor: it may be laid over other memory yet, and let this one go.
                self._kept[_memory(tensor)] = tensor.untyped_storage()
        return out


class _Refusing(OperationMode):
    """Shows each operation and its tensors to `check` before it runs."""

    def __init__(self, check: Callable[[Any, Iterator[torch.Tensor]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._check = check

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._check(func, _tensors((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Those with memory of their own: an opaque one (packed weights) has none to look at."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf


def _is_storage(leaf: Any) -> bool:
    return isinstance(leaf, torch.UntypedStorage)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - two empty storages share address 0
