"""Rotary position embedding (RoPE): tables made once, rotation in three operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from warcore_model_llama.config import Llama3Scaling, LlamaConfig


def rotary_table(
    config: LlamaConfig,
    device: torch.device,
    dtype: torch.dtype,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """[max_context, 2, 1, head_dim]: cosines, and sines whose first half is negated.

    factors [head_dim / 2]: divisors of the frequencies that a file brings along. Angles are
    computed in fp32, as the models were trained (fp64 for an fp64 model).
    Source: Su et al. 2021, RoFormer; halves are rotated against each other, as in GPT-NeoX.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    steps = torch.arange(0, config.head_dim, 2, dtype=wide) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**steps)
    if config.rope_scaling is not None:
        frequencies = _stretch(frequencies, config.rope_scaling)
    if factors is not None:
        frequencies /= factors.to(wide)
    angles = torch.outer(torch.arange(config.max_context, dtype=wide), frequencies)
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1)
    return table.unsqueeze(2).to(device, dtype)


def _stretch(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Slow frequencies divided by the factor, fast ones kept, a linear blend in between.

    Source: the reference code of Llama 3.1 (`apply_scaling`).
    """
    wavelengths = 2 * math.pi / frequencies
    slow, fast = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((scaling.original_context / wavelengths - slow) / (fast - slow)).clamp(0, 1)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, head_dim] turned by its positions; cos and sin [T, 1, head_dim] of the table.

    Rolling by half the head swaps the halves, and the negated half of the sines does the rest.
    """
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)
