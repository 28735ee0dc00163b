"""What this algorithm proposes, one step at a time and without an engine."""

from types import SimpleNamespace

import pytest
import torch
from warcore import Accepted, ForwardBatch, ForwardMode

from warcore_spec_sample import Sample

VOCABULARY, DRAFTED = 10, 3


@pytest.fixture
def algorithm():
    relay = {"after": torch.zeros(3, VOCABULARY, dtype=torch.int64)}
    return Sample(SimpleNamespace(relay=relay, num_tokens=DRAFTED))


def batch_of(mode, tokens, start=0):
    """One request, in row 1, whose new tokens have the positions from `start` on."""
    count = len(tokens)
    return ForwardBatch(
        mode=mode,
        size=1,
        padded_size=1,
        padded_tokens=count,
        tokens=torch.tensor(tokens),
        rows=torch.tensor([1]),
        seq_lens=torch.tensor([start + count], dtype=torch.int32),
        q_start=torch.tensor([0, count], dtype=torch.int32),
        q_row=torch.zeros(count, dtype=torch.int64),
        positions=torch.arange(start, start + count),
        out_slots=torch.arange(start, start + count),
        max_seq_len=start + count,
    )


def proposed(algorithm, token):
    return algorithm.draft(batch_of(ForwardMode.DECODE, [token])).tokens.tolist()


def prefill(algorithm, tokens, follows, start=0):
    accepted = Accepted(torch.tensor([[follows]]), torch.tensor([1]))
    algorithm.draft_extend(batch_of(ForwardMode.EXTEND, tokens, start), accepted)


def test_it_proposes_what_followed(algorithm):
    prefill(algorithm, [1, 2, 3], follows=4)
    assert proposed(algorithm, 1) == [[2, 3, 4]]


def test_a_prompt_in_chunks_is_one_prompt(algorithm):
    prefill(algorithm, [1, 2], follows=3)
    prefill(algorithm, [3], follows=4, start=2)
    assert proposed(algorithm, 1) == [[2, 3, 4]]


def test_of_a_draft_only_what_was_accepted_is_remembered(algorithm):
    accepted = Accepted(torch.tensor([[6, 7, 8, 9]]), torch.tensor([2]))
    batch = batch_of(ForwardMode.DRAFT_EXTEND, [5, 6, 7, 8], 4)
    algorithm.draft_extend(batch, accepted)
    assert proposed(algorithm, 5) == [[6, 7, 0]]


def test_a_new_request_in_the_row_finds_nothing_of_the_one_before(algorithm):
    prefill(algorithm, [1, 2], follows=3)
    prefill(algorithm, [5], follows=6)
    assert proposed(algorithm, 1) == [[0, 0, 0]]
