"""How steps are cut: what a grid covers, and that the memory for splits is always enough."""

from __future__ import annotations

import itertools

import pytest
import torch

from warcore_backend_triton.tiling import (
    LEAST,
    PROGRAMS,
    ROWS,
    Heads,
    Tiling,
    most_partial,
    rows_of,
)

HEADS = [
    Heads(kv * group, kv, dim) for kv in (1, 3, 8) for group in (1, 3, 32) for dim in (64, 256)
]
STEPS = list(itertools.product((1, 7, 64), (1, 5, 100), (1, 300, 5000)))
BF16 = torch.bfloat16


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_no_step_needs_more_than_was_taken_for_its_splits(heads, dtype):
    for batch, each, longest in STEPS:
        tokens = batch * each
        tiling = Tiling.of(heads, dtype, batch=batch, tokens=tokens, longest=longest)
        assert rows_of(heads, tiling.tokens, 1) <= ROWS
        if tiling.splits > 1:
            assert tiling.splits <= -(-longest // LEAST)
            assert -(-tokens // tiling.tokens) * heads.kv * tiling.splits <= PROGRAMS
            taken = most_partial(heads, max_tokens=tokens, width=longest)
            assert tiling.splits * tokens <= taken
            # As much as some larger engine takes, too.
            assert taken <= most_partial(heads, max_tokens=9000, width=9000)


def test_a_decode_has_a_tile_for_each_request_and_a_verify_too():
    heads = Heads(32, 8, 128)
    for each in (1, 5, 7):
        tiling = Tiling.of(heads, BF16, batch=16, tokens=16 * each, longest=200)
        assert tiling.tokens == each


def test_keys_are_split_as_long_as_programs_are_idle():
    heads = Heads(32, 8, 128)

    def splits(batch, longest):
        return Tiling.of(heads, BF16, batch=batch, tokens=batch, longest=longest).splits

    assert splits(1, 16384) == 32
    assert splits(4, 16384) == 8
    assert splits(64, 16384) == 1
    assert splits(1, LEAST) == 1
    assert splits(1, LEAST + 1) == 2


def test_a_sequence_that_grows_meets_few_numbers_of_splits():
    # Each is compiled when it is first met, in the middle of an eager step.
    heads = Heads(32, 8, 128)
    met = {
        Tiling.of(heads, BF16, batch=batch, tokens=batch, longest=longest).splits
        for batch in (1, 2, 3, 5)
        for longest in range(1, 9000, 50)
    }
    assert met == {1, 2, 4, 8, 16, 32}


def test_in_the_interpreter_one_tile_holds_the_batch():
    heads = Heads(4, 2, 64)
    tiling = Tiling.of(heads, BF16, batch=5, tokens=35, longest=60, interpreted=True)
    assert (tiling.tokens, tiling.splits, tiling.pack) == (64, 1, 2)
    assert tiling.keys * tiling.pack >= 5 * 60
    odd = Tiling.of(Heads(6, 3, 64), BF16, batch=1, tokens=1, longest=8, interpreted=True)
    assert (odd.tokens, odd.keys, odd.pack) == (1, 16, 1)
