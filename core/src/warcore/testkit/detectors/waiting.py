"""Calls by which a forward would wait for the device, found on any device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from warcore.testkit.packages.sources import KIT, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

OPERATIONS: Final = frozenset(
    {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
    | {"aten::nonzero", "aten::nonzero_numpy", "aten::argwhere", "aten::masked_select"}
    | {"aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"}
)
"""What needs a value of the device, or gives a tensor whose size depends on one."""
METHODS: Final = frozenset({"tolist", "numpy", "cpu", "__array__"})
"""What brings a tensor to the host without such an operation."""


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation that waits, and the line of `folder` from which it came."""

    def __init__(self, folder: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, str]] = []
        self._folder = str(folder)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, given = func.name().partition(".")[0], kwargs or {}
        if name in OPERATIONS or _sizes_by_value(name, args, given):
            self.note(name)
        return func(*args, **given)

    def note(self, name: str) -> None:
        """Note `name` if the model has called it."""
        frame = sys._getframe(2)  # noqa: SLF001 - there is no other way to see who calls
        while frame is not None:
            file = frame.f_code.co_filename
            if file == __file__:
                frame = frame.f_back  # type: ignore[assignment]
                continue
            if file.startswith(self._folder):
                self.found.append((name, str(place_of(file, frame.f_lineno))))
                return
            if file.startswith(KIT):
                return
            frame = frame.f_back  # type: ignore[assignment]


def _sizes_by_value(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation that may have a size of its own has none here."""
    if name == "aten::repeat_interleave":
        return isinstance(args[-1], torch.Tensor) and kwargs.get("output_size") is None
    masks = (torch.bool, torch.uint8)
    return name == "aten::index" and any(
        index is not None and index.dtype in masks for index in args[1]
    )


class Fetches(TorchFunctionMode):
    """Tells `waits` of methods that bring a tensor to the host."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in METHODS:
            self._waits.note(f"Tensor.{name}")
        return func(*args, **(kwargs or {}))
