"""Prefills of few tokens: each request over all of its positions, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore_backend_deepseek_v4.attention import attend, causal, load, score_mask
from warcore_backend_deepseek_v4.lookups import Table

if TYPE_CHECKING:
    from warcore import Layer
    from warcore_backend_deepseek_v4.attention import KeysAndValues


class Dense(Table):
    """Every token is compared with every position of its request, and a mask says what it sees."""

    def spans(self) -> tuple[int, int]:
        """The requests, and all that they have."""
        return self.rows, self.length

    def looked_at(self) -> torch.Tensor:
        """[1, L]: all positions."""
        return self.source.columns[None, : self.length]

    def owned(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Before the first token's window its beginning, behind the last token that one."""
        last = self.last()
        first = torch.minimum(self.settled() - (self.source.window or 1) + 1, last)
        at = torch.minimum(torch.maximum(self.looked_at(), first), last)
        return self.batch.rows[: self.rows], at.clamp(min=0)

    def attend(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """A call for each request: one long prompt among short ones pads nothing."""
        slots = self.slots(layer)
        mask = self.derive(self._mask, layer.window)
        out, start = torch.zeros_like(q), 0
        for request, count in enumerate(self.batch.extend_lens):
            part = slice(start, start + count)
            loaded = load(cache, slots[request : request + 1])
            out[part] = attend(q[None, part], loaded, mask[part], layer)[0]
            start += count
        return out

    def _mask(self, window: int | None) -> torch.Tensor:
        """[T, L]."""
        seen = causal(self.batch.positions, self.looked_at()[0], window)
        return score_mask(seen, self.source.dtype)
