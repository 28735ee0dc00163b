"""Tensors on their way from a source to the device: shape checked, cast, counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from warcore import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore import ModelContext
    from warcore_model_llama.config import LlamaConfig


class WeightSource(Protocol):
    """Where tensors come from: a file, a directory, a seed. Names as in `LlamaConfig.shapes`."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor, [out, in] for matrices, on any device; ModelError if it is not there."""

    def where(self, name: str) -> str:
        """File and tensor as the source calls them, for messages."""

    def rope_factors(self) -> torch.Tensor | None:
        """[head_dim / 2] divisors of the rotary frequencies, if the source has any."""


class Weights:
    """Reads each tensor of a configuration once, as a model of `ctx.dtype` on `ctx.device`."""

    def __init__(self, config: LlamaConfig, source: WeightSource, ctx: ModelContext) -> None:
        self._shapes = config.shapes()
        self._source = source
        self._ctx = ctx
        size = ctx.dtype.itemsize
        self._total = size * sum(math.prod(shape) for shape in self._shapes.values())
        self._done = 0

    def read(self, name: str) -> torch.Tensor:
        """The tensor on the device. ModelError if it is missing or has another shape."""
        tensor = self._source.read(name)
        if tuple(tensor.shape) != self._shapes[name]:
            raise ModelError(
                f"{self._source.where(name)} has shape {list(tensor.shape)}, "
                f"but the configuration asks for {list(self._shapes[name])}",
                next="load the model again: its files changed while they were read",
            )
        tensor = tensor.to(self._ctx.device, self._ctx.dtype).contiguous()
        self._done += tensor.numel() * tensor.element_size()
        if self._ctx.progress is not None:
            self._ctx.progress(self._done, self._total)
        return tensor

    def layer(self, index: int) -> Callable[[str], torch.Tensor]:
        """`read` for the tensors of one layer."""
        return lambda name: self.read(f"{index}.{name}")

    def rope_factors(self) -> torch.Tensor | None:
        """The divisors of the source, not cast and not counted."""
        return self._source.rope_factors()
