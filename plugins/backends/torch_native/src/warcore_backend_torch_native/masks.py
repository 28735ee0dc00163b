"""Which positions each token of a batch sees, as the mask that torch adds to the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from warcore import ForwardBatch


def score_mask(
    batch: ForwardBatch, columns: torch.Tensor, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """[T, L] of `dtype`: 0 where a token sees position `columns[j]`, else the lowest number.

    A window of w tokens is the token itself and the w - 1 positions before it.
    """
    seen = (
        _tree(batch, columns, window)
        if batch.tree_mask is not None
        else (_causal(batch, columns, window))
    )
    # NOTE: not -inf. A padding token may see nothing, and a row of -inf alone is NaN.
    hidden = torch.finfo(dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, hidden)


def _causal(batch: ForwardBatch, columns: torch.Tensor, window: int | None) -> torch.Tensor:
    at = batch.positions[:, None]
    seen = columns <= at
    return seen if window is None else seen & (columns > at - window)


def _tree(batch: ForwardBatch, columns: torch.Tensor, window: int | None) -> torch.Tensor:
    """The settled prefix, and of the step's own tokens those that the mask's row allows.

    A request's tokens of this step are the last of its sequence, in the order of the batch. Their
    `positions` are depths in the tree, so two of them may be equal.
    """
    assert batch.tree_mask is not None
    first = batch.q_start[:-1][batch.q_row, None]
    count = batch.q_start[1:][batch.q_row, None] - first
    settled = batch.seq_lens[batch.q_row, None] - count
    drafted = (columns - settled).clamp(0, batch.tree_mask.shape[1] - 1)
    in_block = (columns >= settled) & (columns < settled + count)
    seen = (columns < settled) | (in_block & batch.tree_mask.gather(1, drafted))
    if window is None:
        return seen
    depth = batch.positions[(first + drafted).clamp(max=batch.padded_tokens - 1)]
    distance = batch.positions[:, None] - torch.where(in_block, depth, columns)
    return seen & (distance < window)
