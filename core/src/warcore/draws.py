"""Draws: counter-based random numbers, keyed by a request's seed and a position.

A draw depends on these two and on nothing else: not on the batch, the device or the step. Importing
this module imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

SEED_LIMIT: Final = 2**63
GAMMA: Final = 0x9E3779B97F4A7C15
MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def seed_of(seed: int, number: int) -> int:
    """The seed of request `number` in an engine of this seed, for one that brings none."""
    return (seed + (number + 1) * GAMMA) % SEED_LIMIT


def uniform(seeds: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One number in [0, 1) for each (seed, position): [B] i64, [B] integers -> [B] of `dtype`.

    SplitMix64 (Steele, Lea and Flood 2014, with Stafford's variant 13 as finalizer): number
    `position` of the sequence that starts at the finalized seed. Integers only up to the last
    step, so a value is the same in any batch and on any device; 24 bits for float32, the same and
    29 more for float64.
    """
    import torch

    bits = _finalize(_finalize(seeds) + (positions.long() + 1) * _signed(GAMMA))
    width = 53 if dtype == torch.float64 else 24
    return _shift_right(bits, 64 - width).to(dtype) * 2.0**-width


def _finalize(z: torch.Tensor) -> torch.Tensor:
    """SplitMix64's bijection of 64-bit integers; multiplication wraps around."""
    for shift, factor in MIX:
        z = z ^ _shift_right(z, shift)
        z = z * _signed(factor) if factor != 1 else z
    return z


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift that brings in zeros; torch's own copies the sign of an int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
