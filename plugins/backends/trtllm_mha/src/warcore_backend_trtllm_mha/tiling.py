"""How a step is cut into programs: from shapes and the host's bounds alone, so that a graph's grid
is that of its capture, and no step is tuned while it is captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    import torch

PROGRAMS: Final = 256
"""A grid below this leaves most of a large GPU idle; keys are split until it is reached."""
LEAST: Final = 256
"""Positions that are worth a split: each costs a write and a read of its output."""
ROWS: Final = 64
"""Of a tile: query heads times tokens."""
BYTES: Final = 16384
"""Of a block of keys, and of one of values: with two of each and the queries, a program fits into
the shared memory of any GPU since Ampere."""
INTERPRETED: Final = 512
"""Keys of a block, and rows of a tile, in the interpreter, which takes as long for one number as
for hundreds."""


@attrs.frozen
class Tiling:
    """How one step is cut."""

    tokens: int
    """Of one request, in one tile."""
    tiles: int
    """For each request."""
    keys: int
    """In one step of a program's loop."""
    splits: int
    """Of the keys of each tile."""

    @classmethod
    def of(
        cls,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        *,
        batch: int,
        each: int,
        longest: int,
        interpreted: bool = False,
    ) -> Tiling:
        """For `batch` requests of at most `each` tokens and sequences of at most `longest`.

        shape: (query heads, KV heads, head size). A tile holds what a request has, up to ROWS rows.
        """
        q_heads, kv_heads, dim = shape
        heads, dim = power_of_two(q_heads // kv_heads), padded_dim(dim)
        if interpreted:
            tokens = min(power_of_two(each), max(INTERPRETED // heads, 1))
            keys = max(min(power_of_two(longest), INTERPRETED), 16)
            return cls(tokens, -(-each // tokens), keys, 1)
        most = min(ROWS, 2 * BYTES // (dim * dtype.itemsize)) // heads
        tokens = max(min(each, most), 1)
        tiles = -(-each // tokens)
        splits = max(min(PROGRAMS // (batch * tiles * kv_heads), -(-longest // LEAST)), 1)
        keys = max(min(BYTES // (dim * dtype.itemsize), 64), 16)
        return cls(tokens, tiles, keys, _few(splits))


def rows_of(tokens: int, heads: int) -> int:
    """Of a tile of so many tokens; at least 16: a tensor core takes no less."""
    return max(power_of_two(tokens) * heads, 16)


def most_partial(kv_heads: int, group: int, *, max_tokens: int, width: int) -> int:
    """The most that a step's splits times its tokens can be: a tile has a token at least."""
    splits = min(PROGRAMS // kv_heads, -(-width // LEAST))
    per_tile = max(ROWS // power_of_two(group), 1)
    return min(PROGRAMS // kv_heads * per_tile, splits * max_tokens) if splits > 1 else 0


def _few(splits: int) -> int:
    """The power of two below or at it: each number of splits is a kernel to compile, which an eager
    step waits for, and a sequence that grows would meet them all.
    """
    return 1 << (splits.bit_length() - 1)


def padded_dim(dim: int) -> int:
    """A power of two, at least 16: a tensor core takes no less."""
    return max(power_of_two(dim), 16)


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`."""
    return 1 << (max(number, 1) - 1).bit_length()
