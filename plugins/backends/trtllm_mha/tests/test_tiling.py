"""How steps are cut: that a grid covers its step, and that the memory for splits is enough."""

from __future__ import annotations

import itertools

import pytest
import torch

from warcore_backend_trtllm_mha.tiling import (
    LEAST,
    PROGRAMS,
    ROWS,
    Tiling,
    most_partial,
    rows_of,
)

HEADS = [(kv * group, kv, dim) for kv in (1, 3, 8) for group in (1, 3, 32) for dim in (64, 256)]
STEPS = list(itertools.product((1, 7, 64), (1, 5, 100), (1, 300, 5000)))
SHAPE = (32, 8, 128)


@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_no_step_needs_more_than_was_taken_for_its_splits(shape, dtype):
    q_heads, kv_heads, _ = shape
    for batch, each, longest in STEPS:
        tiling = Tiling.of(shape, dtype, batch=batch, each=each, longest=longest)
        assert tiling.tokens * tiling.tiles >= each
        group = q_heads // kv_heads
        assert rows_of(tiling.tokens, group) <= max(ROWS, 2 * group * tiling.tokens)
        if tiling.splits > 1:
            assert tiling.splits <= -(-longest // LEAST)
            assert batch * tiling.tiles * kv_heads * tiling.splits <= PROGRAMS
            taken = most_partial(kv_heads, group, max_tokens=batch * each, width=longest)
            assert tiling.splits * batch * each <= taken
            # As much as some larger engine takes, too.
            assert taken <= most_partial(kv_heads, group, max_tokens=9000, width=9000)


def test_a_decode_has_a_tile_for_each_request_and_a_verify_too():
    for each in (1, 5, 7):
        tiling = Tiling.of(SHAPE, torch.bfloat16, batch=16, each=each, longest=200)
        assert (tiling.tokens, tiling.tiles) == (each, 1)


def test_keys_are_split_as_long_as_programs_are_idle():
    def splits(batch, longest):
        return Tiling.of(SHAPE, torch.bfloat16, batch=batch, each=1, longest=longest).splits

    assert splits(1, 16384) == 32
    assert splits(4, 16384) == 8
    assert splits(64, 16384) == 1
    assert splits(1, LEAST) == 1
    assert splits(1, LEAST + 1) == 2


def test_a_sequence_that_grows_meets_few_numbers_of_splits():
    # Each is compiled when it is first met, in the middle of an eager step.
    met = {
        Tiling.of(SHAPE, torch.bfloat16, batch=batch, each=1, longest=longest).splits
        for batch in (1, 2, 3, 5)
        for longest in range(1, 9000, 50)
    }
    assert met == {1, 2, 4, 8, 16, 32}


def test_in_the_interpreter_few_programs_do_it():
    tiling = Tiling.of((4, 2, 64), torch.bfloat16, batch=5, each=7, longest=60, interpreted=True)
    assert (tiling.tokens, tiling.tiles, tiling.keys, tiling.splits) == (8, 1, 64, 1)
