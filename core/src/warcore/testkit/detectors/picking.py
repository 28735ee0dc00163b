"""Which elements a call touches that picks them by index, where a look at the index tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import torch

MAX_PICKS = 1 << 16
"""With more indices than this the call counts as touching all of its argument."""


@attrs.frozen(eq=False)
class Picked:
    """Pieces of one argument of a call."""

    argument: str
    addresses: torch.Tensor
    """[n] i64: where each piece begins."""
    size: int
    """Bytes from the beginning of a piece to its end."""


Pick = Callable[[dict[str, Any]], Picked | None]


def _along(subject: str) -> Pick:
    """Slices of `subject` along `dim`: `index` holds which."""

    def pick(bound: dict[str, Any]) -> Picked | None:
        tensor, index = bound[subject], bound["index" if "index" in bound else "indices"]
        if not _legible(index) or not tensor.dim():
            return None
        dim = bound.get("dim", 0) % tensor.dim()
        offsets = _wrapped(index, tensor.shape[dim]) * tensor.stride(dim)
        return _picked(subject, tensor, offsets, [d for d in range(tensor.dim()) if d != dim])

    return pick


def _each(bound: dict[str, Any]) -> Picked | None:
    """One element of `self` for each of `index`, which replaces the coordinate `dim`."""
    tensor, index = bound["self"], bound["index"]
    if not _legible(index) or index.dim() != tensor.dim():
        return None
    dim = bound["dim"] % tensor.dim()
    offsets = _wrapped(index, tensor.shape[dim]) * tensor.stride(dim)
    for d in range(tensor.dim()):
        if d != dim:
            shape = [-1 if d == each else 1 for each in range(tensor.dim())]
            offsets = offsets + (torch.arange(index.shape[d]) * tensor.stride(d)).view(shape)
    return _picked("self", tensor, offsets, [])


def _indexed(bound: dict[str, Any]) -> Picked | None:
    """What `self[indices]` picks, with None for a whole dimension. A mask is none of it."""
    tensor, indices = bound["self"], bound["indices"]
    given = [index for index in indices if index is not None]
    if not given or not all(map(_legible, given)):
        return None
    shape = torch.broadcast_shapes(*(index.shape for index in given))  # type: ignore[no-untyped-call]
    if shape.numel() > MAX_PICKS:
        return None
    offsets = torch.zeros(shape, dtype=torch.int64)
    rest = list(range(len(indices), tensor.dim()))
    for dim, index in enumerate(indices):
        if index is None:
            rest.append(dim)
        else:
            offsets = offsets + _wrapped(index, tensor.shape[dim]) * tensor.stride(dim)
    return _picked("self", tensor, offsets, rest)


def _taken(bound: dict[str, Any]) -> Picked | None:
    """Elements of `self` by their number."""
    tensor, index = bound["self"], bound["index"]
    if not _legible(index) or not tensor.is_contiguous():
        return None
    return _picked("self", tensor, _wrapped(index, tensor.numel()), [])


def _legible(index: Any) -> bool:
    """Whether the index can be looked at without making a device or anybody else wait."""
    return (
        type(index) is torch.Tensor
        and index.device.type == "cpu"
        and index.dtype in {torch.int32, torch.int64}
        and index.numel() <= MAX_PICKS
    )


def _wrapped(index: torch.Tensor, size: int) -> torch.Tensor:
    index = index.long()
    return torch.where(index < 0, index + size, index)


def _picked(name: str, tensor: torch.Tensor, offsets: torch.Tensor, rest: list[int]) -> Picked:
    """offsets: elements. Each piece has all of the dimensions `rest`, gaps among them included."""
    last = sum((tensor.shape[dim] - 1) * tensor.stride(dim) for dim in rest)
    empty = any(not tensor.shape[dim] for dim in rest)
    size = tensor.element_size()
    addresses = tensor.data_ptr() + offsets.reshape(-1) * size
    return Picked(name, addresses[:0] if empty else addresses, (last + 1) * size)


PICKS: Final[dict[str, Pick]] = {
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "index_put_"), _indexed),
    "_index_put_impl_": _indexed,
    **dict.fromkeys(("index_select", "index_copy_", "index_fill_", "index_add_"), _along("self")),
    "embedding": _along("weight"),
    **dict.fromkeys(("gather", "scatter_", "scatter_add_", "scatter_reduce_"), _each),
    "take": _taken,
}
"""By the name of the call."""
