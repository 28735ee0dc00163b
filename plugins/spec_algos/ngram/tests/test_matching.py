"""The matching, held to a plain search in Python."""

from __future__ import annotations

import random

import pytest
import torch

from warcore_spec_ngram.algorithm import branches
from warcore_spec_ngram.matching import candidates, following, match_lengths

NOBODY = 99
"""Behind a text stands whatever a longer one left there."""


def plain_lengths(text, longest):
    """For each position before the last, how many tokens up to it are those up to the last."""
    last, lengths = len(text) - 1, []
    for at in range(last):
        length = 0
        while length < longest and length <= at and text[at - length] == text[last - length]:
            length += 1
        lengths.append(length)
    return lengths


def drawn(seed, size=9):
    draw = random.Random(seed)
    texts = [
        draw.choices(range(draw.choice([2, 3, 8])), k=draw.randint(1, 40)) for _ in range(size)
    ]
    width = max(map(len, texts)) + draw.randint(0, 3)
    padded = [text + [NOBODY] * (width - len(text)) for text in texts]
    last = torch.tensor([len(text) - 1 for text in texts])
    return texts, torch.tensor(padded, dtype=torch.int32), last


@pytest.mark.parametrize("longest", [1, 3, 50])
@pytest.mark.parametrize("seed", range(20))
def test_a_match_is_as_long_as_a_plain_search_finds(seed, longest):
    texts, padded, last = drawn(seed)
    lengths = match_lengths(padded, last, longest).tolist()
    for text, found in zip(texts, lengths, strict=True):
        owed = plain_lengths(text, longest)
        assert found == owed + [0] * (len(found) - len(owed))


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_match_is_the_best_and_then_the_latest(seed):
    texts, padded, last = drawn(seed)
    lengths = match_lengths(padded, last, 4)
    found = list(candidates(padded, lengths, 3))
    for row, text in enumerate(texts):
        owed, left = [], [(n, at) for at, n in enumerate(plain_lengths(text, 4)) if n]
        while left and len(owed) < 3:
            owed.append(max(left)[1])
            left = [(n, at) for n, at in left if text[at + 1] != text[owed[-1] + 1]]
        assert [int(at[row]) for at, there in found if there[row]] == owed


def test_what_follows_goes_round_where_the_text_ends():
    text = torch.tensor([[7, 1, 2, 1, 2, NOBODY], [5, 6, 7, 8, 5, NOBODY]])
    came = following(text, torch.tensor([2, 0]), torch.tensor([4, 4]), 5)
    assert came.tolist() == [[1, 2, 1, 2, 1], [6, 7, 8, 5, 6]]


@pytest.mark.parametrize(
    ("tokens", "count", "owed"),
    [(5, 1, [5]), (5, 2, [4, 1]), (8, 2, [6, 2]), (8, 4, [5, 1, 1, 1]), (3, 3, [1, 1, 1])],
)
def test_the_first_branch_is_the_longest(tokens, count, owed):
    assert branches(tokens, count) == owed
