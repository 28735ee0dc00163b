"""Elements of tensors: which of a table lie in a range of bytes, and whether two hold the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def region(name: str, table: torch.Tensor, start: int, stop: int) -> str:
    """`req_to_token[3, 0:16]`: bytes `start` to `stop` of a contiguous table of one or two
    dimensions.

    Over several rows it is exact, too: `[1:3, 0:64]` if they are whole, else `[1, 8:] to [3, :5]`.
    """
    size = table.element_size()
    first, last = start // size, -(-stop // size) - 1
    if table.dim() == 1:
        return f"{name}[{first}:{last + 1}]"
    width = table.shape[1]
    (row, column), (last_row, last_column) = divmod(first, width), divmod(last, width)
    if row == last_row:
        return f"{name}[{row}, {column}:{last_column + 1}]"
    if not column and last_column == width - 1:
        return f"{name}[{row}:{last_row + 1}, 0:{width}]"
    return f"{name}[{row}, {column}:] to [{last_row}, :{last_column + 1}]"


def element(table: torch.Tensor, offset: int) -> str:
    """`[3, 16]`: the element of such a table in which the byte at `offset` lies."""
    index = offset // table.element_size()
    if table.dim() == 1:
        return f"[{index}]"
    row, column = divmod(index, table.shape[1])
    return f"[{row}, {column}]"


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is NaN, so that a step may repeat itself."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if not one.is_floating_point() and not one.is_complex():
        return one.equal(other)
    return one.allclose(other, rtol=0, atol=0, equal_nan=True)
