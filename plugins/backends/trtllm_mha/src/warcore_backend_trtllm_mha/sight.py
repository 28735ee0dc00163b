"""Who sees what in a step: of each token, which positions of its own request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

if TYPE_CHECKING:
    from warcore import ForwardBatch


@attrs.frozen(eq=False)
class Sight:
    """The positions that the tokens of one step see, from what is private to it.

    A window of w tokens is the token itself and the w - 1 positions before it. A request's tokens
    of this step are the last of its sequence, in the order of the batch; in a tree their
    `positions` are depths, of which two may be equal.
    """

    batch: ForwardBatch
    counts: torch.Tensor
    """[B] i32, tokens of this step."""
    settled: torch.Tensor
    """[B] i32, tokens before this step."""

    @classmethod
    def of(cls, batch: ForwardBatch) -> Sight:
        counts = batch.q_start[1:] - batch.q_start[:-1]
        return cls(batch, counts, batch.seq_lens - counts)

    def seen(self, at: torch.Tensor, window: int | None) -> torch.Tensor:
        """[T, L] bool: whether a token sees the positions `at` [L]."""
        here = self.batch.positions[:, None]
        if self.batch.tree_mask is None:
            seen = at <= here
            return seen if window is None else seen & (at > here - window)
        node, drafted = self._nodes(at)
        ancestor = self.batch.tree_mask.gather(1, node)
        settled = self.settled[self.batch.q_row, None]
        seen = (at < settled) | (drafted & ancestor)
        if window is None:
            return seen
        first = self.batch.q_start[self.batch.q_row, None]
        token = (first + node).clamp(max=self.batch.padded_tokens - 1)
        depth = torch.where(drafted, self.batch.positions[token], at)
        return seen & (depth > here - window)

    def _nodes(self, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """([T, L] i64, which drafted token of a token's request is at a position, [T, L] bool,
        whether one is).
        """
        assert self.batch.tree_mask is not None
        node = at - self.settled[self.batch.q_row, None]
        drafted = (node >= 0) & (node < self.counts[self.batch.q_row, None])
        return node.clamp(0, self.batch.tree_mask.shape[1] - 1), drafted
