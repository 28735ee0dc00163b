"""Trees: a spine of the likeliest tokens, and the likeliest of what could stand beside them."""

from __future__ import annotations

import torch

from warcore import Draft

DEEPER = 1
"""How many levels more than a tree of full levels would have: narrow where the head is sure."""


def levels_of(tokens: int, topk: int) -> int:
    """How far to draft for `tokens` nodes with `topk` alternatives at each place."""
    full = -(-tokens // topk)
    return tokens if topk == 1 else min(full + DEEPER, tokens)


def tree(tokens: torch.Tensor, scores: torch.Tensor, count: int) -> Draft:
    """The `count` likeliest nodes of a spine with siblings.

    tokens: [B, D, T] i64, the T likeliest at each of D levels, the spine first; only it goes on.
    scores: [B, D, T], the log of each one's chance at its place. As in Li et al. 2024 (EAGLE-2),
    nodes are compared by the chance of the whole path to them.
    """
    size, depth, topk = tokens.shape
    # Beyond a request's end anything may be foreseen, NaN too; it must not move what is before.
    scores = scores.nan_to_num(-torch.inf)
    before = torch.nn.functional.pad(scores[:, :-1, 0].cumsum(1), (1, 0))
    path = (before[:, :, None] + scores).flatten(1)
    # A child is no likelier than its parent and stands behind it: a stable order keeps both.
    best = path.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
    chosen = torch.zeros_like(path, dtype=torch.int64).scatter_(1, best, 1)
    number = chosen.cumsum(1).view(size, depth, topk)[:, :, 0]
    parents = torch.nn.functional.pad(number[:, :-1], (1, 0))
    parents = parents[:, :, None].expand(size, depth, topk).flatten(1)
    return Draft(tokens.flatten(1).gather(1, best), parents=parents.gather(1, best))
