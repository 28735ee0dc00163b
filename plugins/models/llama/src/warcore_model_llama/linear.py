"""Matrices as a forward multiplies by them: plain, or packed for bf16 on CPUs.

oneDNN reorders a plain bf16 matrix at every call; a matrix packed once makes a decode step of a
small model about a third faster, and takes the sum or product that follows into the same call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore_model_llama.huge_pages import Span


class Projection(Protocol):
    """A weight [out, in]."""

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] to [T, out]."""

    def linear_add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`linear(x)` + residual [T, out]; may be written over `residual`."""

    def spans(self) -> list[Span]:
        """Where the weight lies in memory: address and bytes of each part."""


class GatedProjection(Protocol):
    """The first half of a SwiGLU block (Shazeer 2020)."""

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """silu(x gate^T) * (x up^T), [T, ffn]."""

    def spans(self) -> list[Span]:
        """Where both weights lie in memory: address and bytes of each part."""


class Plain:
    """Any dtype on any device."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.transposed = weight.t()

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)

    def linear_add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual.addmm_(x, self.transposed)

    def spans(self) -> list[Span]:
        return [(self.weight.data_ptr(), self.weight.nbytes)]


class PlainGated:
    """gate and up as one matrix, [2 ffn, in]."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor) -> None:
        self.weight = torch.cat((gate, up))
        self.ffn = gate.shape[0]

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        both = functional.linear(x, self.weight)
        return functional.silu(both[:, : self.ffn]).mul_(both[:, self.ffn :])

    def spans(self) -> list[Span]:
        return [(self.weight.data_ptr(), self.weight.nbytes)]


class Packed:
    """bf16 on a CPU with bf16 instructions."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # noqa: SLF001 - as torch's own compiler calls it
        pointwise = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        self._unary: Callable[..., torch.Tensor] = pointwise.default
        self._binary: Callable[..., torch.Tensor] = pointwise.binary

    def linear(self, x: torch.Tensor, then: str = "none") -> torch.Tensor:
        """then: "swish" applies it to the product."""
        return self._unary(x, self.weight, None, then, [], "")

    def linear_add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._binary(x, residual, self.weight, None, "add")

    def linear_mul(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """`linear(x)` * factor [T, out]."""
        return self._binary(x, factor, self.weight, None, "mul")

    def spans(self) -> list[Span]:
        """A packed matrix has no storage that `data_ptr()` would know."""
        mkldnn = torch.ops.mkldnn
        return [(mkldnn.data_ptr(self.weight), mkldnn._nbytes(self.weight))]  # noqa: SLF001


class PackedGated:
    """gate and up apart, so that both halves of SwiGLU ride on their products."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor) -> None:
        self.gate, self.up = Packed(gate), Packed(up)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        return self.up.linear_mul(x, self.gate.linear(x, then="swish"))

    def spans(self) -> list[Span]:
        return self.gate.spans() + self.up.spans()


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch build and this CPU multiply packed bf16 matrices."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    )


def projection(weight: torch.Tensor) -> Projection:
    """The fastest form of one matrix for where it lives."""
    return Packed(weight) if packs(weight.device, weight.dtype) else Plain(weight)


def gated_projection(gate: torch.Tensor, up: torch.Tensor) -> GatedProjection:
    """The fastest form of a SwiGLU pair for where it lives."""
    return PackedGated(gate, up) if packs(gate.device, gate.dtype) else PlainGated(gate, up)
