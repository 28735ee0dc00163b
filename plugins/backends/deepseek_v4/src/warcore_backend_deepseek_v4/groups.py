"""Steps with few tokens of each request: decodes, verifies, draft-extends. One call for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore import ForwardMode
from warcore_backend_deepseek_v4.attention import attend, branches, causal, load, score_mask
from warcore_backend_deepseek_v4.lookups import Table

if TYPE_CHECKING:
    from warcore import Layer
    from warcore_backend_deepseek_v4.attention import KeysAndValues


class Tokens(Table):
    """Each token is a group, for only the device knows how many a request has.

    In layers with a window it looks at its window, and at nothing else.
    """

    def spans(self) -> tuple[int, int]:
        """The tokens, and the longest window."""
        return self.batch.padded_tokens, min(self.source.window or 0, self.length)

    def looked_at(self) -> torch.Tensor:
        """Up to the token itself; from 0 on where its window reaches beyond."""
        width = self.spans()[1]
        first = (self.batch.positions[:, None] - width + 1).clamp(min=0)
        return first + self.source.columns[:width]

    def owned(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Behind the last token: the last token."""
        q_row = self.batch.q_row
        return self.batch.rows[q_row], torch.minimum(self.looked_at(), self.last()[q_row])

    def attend(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """One query row a group."""
        slots = self.slots(layer)
        if layer.window is None and self.batch.mode is not ForwardMode.DECODE:
            slots = self.derive(self._spread)
        mask = self.derive(self._mask, layer.window)
        return attend(q[:, None], load(cache, slots), mask, layer)[:, 0]

    def _spread(self) -> torch.Tensor:
        """[T, L] i32: the row of `full` of each token's request."""
        assert self.full is not None
        return self.full[self.batch.q_row]

    def _mask(self, window: int | None) -> torch.Tensor:
        """[T, 1, 1, W]."""
        at = self.source.columns[: self.length] if window is None else self.looked_at()
        seen = causal(self.batch.positions[:, None], at, window)
        return score_mask(seen, self.source.dtype)[:, None]


class Trees(Table):
    """A tree is a group: its nodes share their past, and each sees its own branch besides."""

    @property
    def nodes(self) -> int:
        """N, the query rows of a group; those beyond a request's tokens repeat others."""
        assert self.batch.tree_mask is not None
        return self.batch.tree_mask.shape[1]

    def spans(self) -> tuple[int, int]:
        """The requests, and the window of the root with all nodes behind it."""
        return self.rows, min((self.source.window or 1) - 1 + self.nodes, self.length)

    def looked_at(self) -> torch.Tensor:
        """From the beginning of the root's window on."""
        first = (self.settled() - (self.source.window or 1) + 1).clamp(min=0)
        return first + self.source.columns[: self.spans()[1]]

    def owned(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Behind the last node: the last node."""
        return self.batch.rows[: self.rows], torch.minimum(self.looked_at(), self.last())

    def attend(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """N query rows a group."""
        spread = self.derive(self._spread)
        mask = self.derive(self._mask, layer.window)
        out = attend(q[spread], load(cache, self.slots(layer)), mask, layer)
        return out.flatten(0, 1)[self.derive(self._places)]

    def _mask(self, window: int | None) -> torch.Tensor:
        """[rows, 1, N, W]."""
        batch, spread = self.batch, self.derive(self._spread)
        assert batch.tree_mask is not None
        columns = self.source.columns[: self.length].expand(self.rows, -1)
        at = columns if window is None else self.looked_at()
        own, settled = batch.positions[spread], self.settled()
        seen = branches(batch.tree_mask[spread], own, settled, at, window)
        # What a tree has beyond a request's tokens is somebody else's.
        seen &= (at <= self.last())[:, None]
        return score_mask(seen, self.source.dtype)[:, None]

    def _spread(self) -> torch.Tensor:
        """[rows, N] i64: which token each query row is."""
        nth = self.source.columns[: self.nodes]
        starts = self.batch.q_start[: self.rows, None]
        return (starts + nth).clamp(max=self.batch.padded_tokens - 1)

    def _places(self) -> torch.Tensor:
        """[T] i64: which query row each token is; padding takes any."""
        batch = self.batch
        tokens = torch.arange(batch.padded_tokens, device=batch.q_row.device)
        nth = (tokens - batch.q_start[batch.q_row]).clamp(0, self.nodes - 1)
        return (batch.q_row * self.nodes + nth).clamp(max=self.rows * self.nodes - 1)
