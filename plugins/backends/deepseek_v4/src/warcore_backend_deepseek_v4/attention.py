"""Attention of groups of query rows, each over the keys and values that its group loads by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from warcore import Layer

    KeysAndValues = tuple[torch.Tensor, torch.Tensor]


def load(cache: KeysAndValues, slots: torch.Tensor) -> KeysAndValues:
    """[G, kv_heads, W, D] each, from slots [G, W] of a cache [slots, kv_heads, D]."""
    keys, values = cache
    flat, shape = slots.reshape(-1), (*slots.shape, *keys.shape[1:])
    return (
        keys.index_select(0, flat).view(shape).transpose(1, 2),
        values.index_select(0, flat).view(shape).transpose(1, 2),
    )


def attend(
    q: torch.Tensor, loaded: KeysAndValues, mask: torch.Tensor, layer: Layer
) -> torch.Tensor:
    """q [G, N, q_heads, D] over what its group loaded, shaped like q.

    mask: added to the scores; it broadcasts to [G, q_heads, N, W].
    """
    return scaled_dot_product_attention(
        q.transpose(1, 2),
        *loaded,
        attn_mask=mask,
        scale=layer.scale,
        enable_gqa=layer.q_heads != layer.kv_heads,
    ).transpose(1, 2)


# ---- who sees what -------------------------------------------------------------------------------


def causal(positions: torch.Tensor, at: torch.Tensor, window: int | None) -> torch.Tensor:
    """Whether tokens at `positions` [..., N] see positions `at` [..., W]: bool [..., N, W].

    A window of w tokens is the token itself and the w - 1 before it.
    """
    own, other = positions[..., None], at[..., None, :]
    seen = other <= own
    return seen if window is None else seen & (other > own - window)


def branches(
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    settled: torch.Tensor,
    at: torch.Tensor,
    window: int | None,
) -> torch.Tensor:
    """Whether the nodes of each tree see its places `at` [G, W]: bool [G, N, W].

    tree_mask [G, N, N]: which nodes a node sees. positions [G, N]: depths, of which several may be
    equal. settled [G, 1]: tokens before the tree, whose nodes lie in the places behind them.
    """
    width = tree_mask.shape[2]
    node = at - settled
    nth = node.clamp(0, width - 1)[:, None].expand(-1, positions.shape[1], -1)
    seen = (node < 0)[:, None] | ((node < width)[:, None] & tree_mask.gather(2, nth))
    if window is None:
        return seen
    depth = torch.where(node < 0, at, positions.gather(1, nth[:, 0]))
    return seen & (depth[:, None] > positions[..., None] - window)


def score_mask(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores: 0 where a row sees, else the lowest number of `dtype`."""
    # NOTE: not -inf. A padding row may see nothing, and a row of -inf alone is NaN.
    lowest = torch.finfo(dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, lowest)
