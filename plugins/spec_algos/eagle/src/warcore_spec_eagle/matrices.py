"""Matrices as a head multiplies by them: packed once where a CPU has bf16 instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    Matrix = Callable[[torch.Tensor], torch.Tensor]


def matrix(weight: torch.Tensor) -> Matrix:
    """x [T, in] to [T, out], by `weight` [out, in].

    oneDNN reorders a plain bf16 matrix in each call, which costs a small batch more than the
    product itself.
    """
    mkldnn = torch.ops.mkldnn
    packs = (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and hasattr(mkldnn, "_is_mkldnn_bf16_supported")
        and bool(mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - as torch's compiler asks
    )
    if not packs:
        return lambda x: functional.linear(x, weight)
    packed = mkldnn._reorder_linear_weight(weight.contiguous())  # noqa: SLF001 - as above
    multiply: Matrix = lambda x: mkldnn._linear_pointwise(  # noqa: E731, SLF001 - as above
        x, packed, None, "none", [], ""
    )
    return multiply
