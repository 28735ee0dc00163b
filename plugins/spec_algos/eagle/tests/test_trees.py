"""Trees hold the likeliest nodes, parents before children, whatever the scores are."""

from __future__ import annotations

import pytest
import torch

from warcore_spec_eagle.trees import levels_of, tree


def nodes(tokens, scores, count):
    """What `tree` should choose, by trying all nodes one by one: [(token, parent's token)]."""
    depth, topk = tokens.shape
    spine = [sum(scores[i, 0].item() for i in range(level)) for level in range(depth)]
    every = [
        (-(spine[level] + scores[level, rank].item()), level, rank)
        for level in range(depth)
        for rank in range(topk)
    ]
    chosen = sorted((level, rank) for _, level, rank in sorted(every)[:count])
    at = {place: number for number, place in enumerate(chosen, 1)}
    return [
        (tokens[level, rank].item(), at[level - 1, 0] if level else 0) for level, rank in chosen
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_is_what_an_exhaustive_search_finds(seed):
    draws = torch.Generator().manual_seed(seed)
    depth, topk = 4, 3
    tokens = torch.randint(0, 99, (2, depth, topk), generator=draws)
    scores = torch.randn((2, depth, topk), generator=draws).log_softmax(-1)
    scores = scores.sort(-1, descending=True).values
    for count in (3, 5, 7):
        draft = tree(tokens, scores, count)
        for row in range(2):
            found = list(zip(draft.tokens[row].tolist(), draft.parents[row].tolist(), strict=True))
            assert found == nodes(tokens[row], scores[row], count)


def test_parents_come_before_their_children_among_equals_and_unknowns():
    tokens = torch.arange(8).view(1, 4, 2)
    for scores in (torch.zeros(1, 4, 2), torch.full((1, 4, 2), torch.nan)):
        parents = tree(tokens, scores, 5).parents
        assert bool((parents <= torch.arange(5)).all())
        assert bool((parents >= 0).all())


@pytest.mark.parametrize(
    ("tokens", "topk", "levels"), [(4, 1, 4), (4, 2, 3), (5, 2, 4), (2, 2, 2), (3, 3, 2), (1, 1, 1)]
)
def test_levels_hold_all_nodes_and_no_more_than_tokens(tokens, topk, levels):
    assert levels_of(tokens, topk) == levels
    assert levels * topk >= tokens >= levels
