"""How a step is cut into programs: from shapes and the host's bounds alone, so that a graph's grid
is that of its capture, and no step is tuned while it is captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    import torch

CHUNK: Final = 1024
"""Slots that one program copies."""
PROGRAMS: Final = 256
"""A grid below this leaves most of a large GPU idle; keys are split until it is reached."""
LEAST: Final = 256
"""Positions that are worth a split: each costs a write and a read of its output."""
ROWS: Final = 64
"""Of a tile: query heads times tokens."""
LARGEST_HEAD: Final = 256
LARGEST_GROUP: Final = 32
"""Query heads over one KV head, all in one tile."""
BLOCK: Final = 16384
"""Bytes of a block of keys, and of one of values: with two of each and the queries, a program fits
into the shared memory of any GPU since Ampere."""
MOST_ROWS: Final = 1024
MOST_COLUMNS: Final = 1024
"""Of a tile in the interpreter, which takes as long for one number as for thousands."""
SPANS: Final = 128
"""Tokens whose spans one program finds."""


@attrs.frozen
class Heads:
    """The sizes of a layer."""

    query: int
    kv: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads over one KV head."""
        return self.query // self.kv

    @property
    def padded_group(self) -> int:
        return power_of_two(self.group)

    @property
    def padded_dim(self) -> int:
        """At least 16: a tensor core takes no less."""
        return max(power_of_two(self.dim), 16)


@attrs.frozen
class Tiling:
    """How one step is cut."""

    tokens: int
    """Of the batch, in one tile."""
    keys: int
    """In one step of a program's loop."""
    splits: int
    """Of the keys of each tile."""
    pack: int = 1
    """KV heads of one program."""

    @classmethod
    def of(
        cls,
        heads: Heads,
        dtype: torch.dtype,
        *,
        batch: int,
        tokens: int,
        longest: int,
        interpreted: bool = False,
    ) -> Tiling:
        """For `batch` requests with `tokens` between them and sequences of at most `longest`.

        A tile holds what a request has if all have equally many, so that each sequence is loaded
        once, up to ROWS rows. In the interpreter it holds the whole batch and all heads, if it can.
        """
        if interpreted:
            pack = heads.kv if heads.kv == power_of_two(heads.kv) else 1
            most = max(MOST_ROWS // (heads.padded_group * pack), 1)
            columns = min(power_of_two(batch * longest) * pack, MOST_COLUMNS)
            return cls(min(power_of_two(tokens), most), max(columns // pack, 16), 1, pack)
        most = min(ROWS, 2 * BLOCK // (heads.padded_dim * dtype.itemsize))
        per_tile = max(min(-(-tokens // batch), most // heads.padded_group), 1)
        idle = PROGRAMS // (-(-tokens // per_tile) * heads.kv)
        splits = max(min(idle, -(-longest // LEAST)), 1)
        return cls(per_tile, block_of_keys(heads, dtype), _few(splits))


def rows_of(heads: Heads, tokens: int, pack: int) -> int:
    """Of a tile of so many tokens; at least 16: a tensor core takes no less."""
    return max(power_of_two(tokens) * heads.padded_group * pack, 16)


def block_of_keys(heads: Heads, dtype: torch.dtype) -> int:
    """As many as fit, up to 64; a tensor core takes no less than 16."""
    return max(min(BLOCK // (heads.padded_dim * dtype.itemsize), 64), 16)


def most_partial(heads: Heads, *, max_tokens: int, width: int) -> int:
    """The most that a step's splits times its tokens can be."""
    programs = PROGRAMS // heads.kv
    splits = min(programs, -(-width // LEAST))
    per_tile = ROWS // heads.padded_group
    return min(programs * per_tile, splits * max_tokens) if splits > 1 else 0


def _few(splits: int) -> int:
    """The power of two below or at it: each number of splits is a kernel to compile, which an eager
    step waits for, and a sequence that grows would meet them all.
    """
    return 1 << (splits.bit_length() - 1)


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`."""
    return 1 << (max(number, 1) - 1).bit_length()
