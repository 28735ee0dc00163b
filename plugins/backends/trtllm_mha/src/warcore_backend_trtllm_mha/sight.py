"""Who sees what in a step, from what is private to it.

A window of w tokens is the token itself and the w - 1 positions before it. A request's tokens of a
step are the last of its sequence, in the order of the batch; in a tree their `positions` are
depths, of which two may be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from warcore import ForwardBatch


def settled(batch: ForwardBatch) -> torch.Tensor:
    """[B] i32, the tokens of each sequence before this step."""
    return batch.seq_lens - (batch.q_start[1:] - batch.q_start[:-1])


def seen(batch: ForwardBatch, at: torch.Tensor, window: int | None) -> torch.Tensor:
    """[T, L] bool: whether a token sees the positions `at` [L] of its request."""
    here = batch.positions[:, None]
    if batch.tree_mask is not None:
        return _seen_in_trees(batch, at, window)
    before = at <= here
    return before if window is None else before & (at > here - window)


def _seen_in_trees(batch: ForwardBatch, at: torch.Tensor, window: int | None) -> torch.Tensor:
    """The settled prefix, and of the request's drafted tokens those that the mask's row has."""
    assert batch.tree_mask is not None
    count = (batch.q_start[1:] - batch.q_start[:-1])[batch.q_row, None]
    # Which drafted token is at a position, in each token's own request.
    node = at - (batch.seq_lens[batch.q_row, None] - count)
    drafted = (node >= 0) & (node < count)
    place = node.clamp(0, batch.tree_mask.shape[1] - 1)
    found = (node < 0) | (drafted & batch.tree_mask.gather(1, place))
    if window is None:
        return found
    token = (batch.q_start[batch.q_row, None] + place).clamp(max=batch.padded_tokens - 1)
    depth = torch.where(drafted, batch.positions[token], at)
    return found & (depth > batch.positions[:, None] - window)
