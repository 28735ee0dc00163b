"""Which steps are captured: every size and every length that a backend tells apart, no other."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from parts import configured, engine
from toys import Replaying, RowMajor

from warcore import Bucket, ForwardMode, WiringError
from warcore.buckets import HOST_POSITIONS, PREFILLS_ON_CUDA, plan_buckets
from warcore.errors import ConfigError
from warcore.inputs import blank
from warcore.limits import Limits

CPU = torch.device("cpu")
DECODE, EXTEND = ForwardMode.DECODE, ForwardMode.EXTEND


def limits(**changed):
    given = {
        "max_running": 4,
        "max_context": 64,
        "page_size": 4,
        "pages": 64,
        "prefill_chunk": 16,
        "mixed": False,
    }
    return Limits(**{**given, **changed})


def planned(key=lambda batch: 0, *, of=limits(), modes=frozenset(ForwardMode), **config):  # noqa: B008
    return plan_buckets(configured(**config), of, modes, key, CPU)


def shapes(buckets, mode=DECODE):
    return sorted({(b.rows, b.tokens) for b in buckets if b.mode is mode})


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])]
)
def test_decodes_are_captured_at_powers_of_two_and_at_the_largest_batch(most, sizes):
    buckets = planned(of=limits(max_running=most))
    assert shapes(buckets) == [(size, size) for size in sizes]


def test_decodes_are_captured_at_the_sizes_that_were_named():
    assert shapes(planned(graph_buckets=[2, 3])) == [(2, 2), (3, 3)]


def test_a_draft_runner_replays_its_decodes_and_what_follows_a_verify_but_no_prefills():
    of = limits(max_running=2, drafted=3)
    config = configured(graph_prefill_buckets=(8,), graph_positions=10_000)
    buckets = plan_buckets(config, of, frozenset(ForwardMode), lambda batch: 0, CPU, draft=True)
    assert {bucket.mode for bucket in buckets} == {DECODE, ForwardMode.DRAFT_EXTEND}
    assert shapes(buckets) == [(1, 1), (2, 2)]
    assert shapes(buckets, ForwardMode.DRAFT_EXTEND) == [(1, 4), (2, 8)]
    assert {bucket.max_seq_len for bucket in buckets} == {of.longest + 4}


def test_on_a_cpu_prefills_are_captured_only_where_somebody_named_sizes():
    assert shapes(planned(), EXTEND) == []
    assert shapes(planned(graph_prefill_buckets=(2, 5)), EXTEND) == [(1, 2), (1, 5), (2, 2), (4, 5)]


def test_on_cuda_prefills_are_captured_up_to_a_whole_chunk(monkeypatch):
    # Planned for the device, and asked of the host's tensors: no GPU is needed to plan.
    monkeypatch.setattr("warcore.buckets.blank", lambda bucket, device: blank(bucket, CPU))
    buckets = plan_buckets(
        configured(),
        limits(prefill_chunk=64, max_context=512, pages=512),
        frozenset({EXTEND}),
        lambda batch: 0,
        torch.device("cuda"),
    )
    assert {b.tokens for b in buckets} == {n for n in PREFILLS_ON_CUDA if n <= 64}


def test_only_the_kinds_that_the_runner_captures_are_planned():
    sizes = {"graph_prefill_buckets": [4]}
    assert {b.mode for b in planned(modes=frozenset({DECODE}), **sizes)} == {DECODE}
    assert {b.mode for b in planned(modes=frozenset({EXTEND}), **sizes)} == {EXTEND}
    assert planned(modes=frozenset(), **sizes) == ()


def test_the_largest_comes_first():
    buckets = planned(lambda batch: batch.max_seq_len // 20, graph_prefill_buckets=[3, 8])
    work = [b.rows * b.max_seq_len for b in buckets]
    assert work == sorted(work, reverse=True)
    assert len(set(buckets)) == len(buckets)


# ---- lengths -------------------------------------------------------------------------------------


def by_hand(key, mode, rows, tokens, longest):
    """{key: the longest length with it}, asking for every length that the shape can have."""
    found = {}
    for length in range(-(-tokens // rows), longest + 1):
        if key(length) is not None:
            found[key(length)] = length
    return {Bucket(mode, rows, tokens, last, k) for k, last in found.items()}


def steps(draw, longest):
    """A key function whose equal keys are neighbours: random steps, some of them None."""
    edges = sorted(draw.sample(range(longest + 1), draw.randint(0, min(6, longest))))
    keys = draw.sample(range(100), len(edges) + 1)
    if draw.random() < 0.5:
        keys[draw.randrange(len(keys))] = None

    def key(length):
        return keys[sum(edge <= length for edge in edges)]

    return key


@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_the_keys_that_asking_for_every_length_finds(seed):
    draw = random.Random(seed)
    context = draw.randint(1, 90)
    key = steps(draw, context)
    of = limits(max_context=context, pages=100, prefill_chunk=16)
    prefills = sorted(draw.sample(range(1, 17), 3))
    buckets = planned(
        lambda batch: key(batch.max_seq_len),
        of=of,
        graph_prefill_buckets=prefills,
        graph_positions=10**6,
    )
    expected = set()
    for rows in (1, 2, 4):
        expected |= by_hand(key, DECODE, rows, rows, context)
    for tokens in prefills:
        for rows in {1, min(tokens, 4)}:
            expected |= by_hand(key, EXTEND, rows, tokens, context)
    assert set(buckets) == expected
    assert len(buckets) == len(expected)


def test_powers_of_two_are_found_with_few_questions():
    asked = []

    def key(batch):
        asked.append(batch.max_seq_len)
        return 1 << (batch.max_seq_len - 1).bit_length()

    of = limits(max_running=1, max_context=2**14, pages=2**12)
    buckets = planned(key, of=of, graph_positions=10**6)
    assert {b.max_seq_len for b in buckets} == {1 << n for n in range(15)}
    assert len(asked) < 500


def test_a_shape_whose_key_depends_on_its_rows_is_asked_for_each_of_them():
    buckets = planned(lambda batch: None if batch.size > 2 else batch.size)
    assert sorted((b.rows, b.key) for b in buckets) == [(1, 1), (2, 2)]


# ---- what bounds them ----------------------------------------------------------------------------


def test_the_pool_bounds_the_lengths():
    assert {b.max_seq_len for b in planned(of=limits(pages=5))} == {20}
    assert {b.max_seq_len for b in planned(of=limits(pages=500))} == {64}


def test_a_prefill_longer_than_the_longest_sequence_is_not_captured():
    buckets = planned(of=limits(max_context=8), graph_prefill_buckets=[4, 12])
    assert shapes(buckets, EXTEND) == [(1, 4), (4, 4), (4, 12)]


@pytest.mark.parametrize("most", [1, 40, 64, 127, 128, 300])
def test_no_step_attends_to_more_positions_than_asked_for(most):
    def key(batch):
        return -(-batch.max_seq_len // 16)

    every, some = planned(key, graph_positions=10**6), planned(key, graph_positions=most)
    assert set(some) == {b for b in every if b.rows * b.max_seq_len <= most}


def test_on_a_cpu_long_steps_run_eagerly_unless_asked_for():
    of = limits(max_context=HOST_POSITIONS, pages=HOST_POSITIONS)
    assert shapes(planned(of=of)) == [(1, 1)]
    assert shapes(planned(of=of, graph_positions=10**6)) == [(1, 1), (2, 2), (4, 4)]


# ---- what is refused -----------------------------------------------------------------------------


def test_batches_beyond_those_that_run_are_refused():
    with pytest.raises(ConfigError) as raised:
        planned(graph_buckets=[1, 2, 8])
    assert str(raised.value) == (
        "--graph-buckets 1,2,8: at most 4 requests run at once\n"
        "Next: --max-running-requests 8, or smaller buckets"
    )


def test_batches_beyond_the_pool_are_refused_since_each_request_holds_a_page():
    with pytest.raises(ConfigError) as raised:
        planned(of=limits(pages=2), graph_buckets=[1, 3])
    assert str(raised.value) == (
        "--graph-buckets 1,3: at most 2 requests run at once\n"
        "Next: --kv-pages 3, or smaller buckets"
    )


def test_where_nobody_named_sizes_they_end_at_what_the_pool_can_hold():
    assert shapes(planned(of=limits(pages=3))) == [(1, 1), (2, 2), (3, 3)]


def test_prefills_beyond_a_chunk_are_refused():
    with pytest.raises(ConfigError) as raised:
        planned(graph_prefill_buckets=[8, 32])
    assert str(raised.value) == (
        "--graph-prefill-buckets 8,32: a prefill step has at most 16 tokens\n"
        "Next: --prefill-chunk 32, or smaller buckets"
    )


NONSENSE = [
    (),
    [],
    [0],
    [-1, 2],
    [2, 1],
    [1, 1],
    [1, 2, 2],
    [1.5],
    ["1"],
    [True, 2],
    [None],
    4,
    "4",
    {4},
]


@pytest.mark.parametrize("field", ["graph_buckets", "graph_prefill_buckets"])
@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_a_list_of_sizes_holds_rising_whole_numbers_from_1(field, value):
    with pytest.raises(ConfigError, match=field) as raised:
        configured(**{field: value})
    assert raised.value.next == "give sizes from 1 in rising order, such as 1,2,4,8"


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True])
def test_a_bound_of_positions_is_a_whole_number_from_1(value):
    with pytest.raises(ConfigError, match="graph_positions"):
        configured(graph_positions=value)


@pytest.mark.parametrize("value", [(1, 2), [1, 2], range(1, 3)])
def test_any_sequence_of_sizes_will_do(value):
    assert configured(graph_buckets=value).graph_buckets == (1, 2)


@pytest.mark.parametrize("key", ["128", 1.0, True, (), object])
def test_a_key_that_is_no_number_is_an_error_that_says_what_fits(key):
    class Odd(RowMajor):
        def graph_key(self, batch):
            return key

    with pytest.raises(WiringError, match="backend:Odd: graph_key of a DECODE batch") as raised:
        engine(backend=Odd, graph_runner=Replaying)
    assert "whole number, or None" in raised.value.next


def test_a_key_for_each_length_is_refused_before_anything_is_captured():
    with pytest.raises(WiringError, match="backend: graph_key has more than 64 keys") as raised:
        planned(lambda batch: batch.max_seq_len, of=limits(max_context=65, pages=64))
    assert "powers of two" in raised.value.next


def test_a_key_that_changes_its_mind_is_refused():
    answers = itertools.count()
    with pytest.raises(WiringError, match="returned 0, then 1"):
        planned(lambda batch: next(answers))


def test_a_backend_whose_key_is_none_is_never_captured():
    class Eager(RowMajor):
        def graph_key(self, batch):
            return None

    with engine(backend=Eager, graph_runner=Replaying) as running:
        running.generate("abc")
        assert running._assembly.runner.captures is None
