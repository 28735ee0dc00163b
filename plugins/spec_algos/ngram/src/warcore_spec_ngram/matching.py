"""Matching: where the end of a text occurred before, on the device and for a whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def match_lengths(text: torch.Tensor, last: torch.Tensor, longest: int) -> torch.Tensor:
    """[B, N] i64: how many tokens up to each position are those up to `last`; `longest` at most.

    text: [B, N], of which positions after `last` [B] i64 mean nothing. 0 from `last` on.
    """
    size = text.shape[1]
    running = torch.arange(size, device=text.device) < last[:, None]
    lengths = torch.zeros(text.shape, dtype=torch.int64, device=text.device)
    for back in range(min(longest, size)):
        wanted = text.gather(1, (last - back).clamp(min=0)[:, None])
        same = torch.zeros_like(running)
        torch.eq(text[:, : size - back], wanted, out=same[:, back:])
        running &= same
        lengths += running
    return lengths


def candidates(
    text: torch.Tensor, lengths: torch.Tensor, count: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The best `count` positions of each row, best first: ([B] i64 where, [B] bool whether).

    Longer matches first, later ones first among equals, and no two that the same token follows.
    Only where the first few exist do later ones.
    """
    size = text.shape[1]
    rank = lengths * size + torch.arange(size, device=text.device)
    rank = rank.masked_fill(lengths == 0, -1)
    follows = text.roll(-1, 1)
    for _ in range(count):
        best, at = rank.max(1)
        yield at, best >= 0
        rank = rank.masked_fill(follows == follows.gather(1, at[:, None]), -1)


def following(text: torch.Tensor, at: torch.Tensor, last: torch.Tensor, count: int) -> torch.Tensor:
    """[B, count]: what followed position `at`; where the text ends, again from there.

    So a text that repeats itself every few tokens goes on to do so.
    """
    period = (last - at).clamp(min=1)
    step = torch.arange(count, device=text.device)
    where = at[:, None] + 1 + step % period[:, None]
    return text.gather(1, where.clamp(max=text.shape[1] - 1))
