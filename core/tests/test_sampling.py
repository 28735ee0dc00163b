from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from warcore.draws import uniform
from warcore.errors import ConfigError
from warcore.sampling import SamplingBatch, sample
from warcore.samplingparams import SamplingParams

VOCAB = 37


def to_device(values, dtype):
    return torch.tensor(values, dtype=dtype)


def batch_of(params, seeds):
    return SamplingBatch.build(params, seeds, to_device)


def draws(logits, params, count, seed=1):
    """`count` tokens of one request at positions 0, 1, ... for the same logits [vocab]."""
    batch = batch_of([params] * count, [seed] * count)
    return sample(logits.expand(count, -1), batch, torch.arange(count))


def some_logits(rows=1, vocab=VOCAB, dtype=torch.float32):
    noise = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3))
    return (noise * 2).to(dtype)


# --- parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", -1),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_k", 2**63),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("min_p", math.nan),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", [""]),
        ("stop", [3]),
        ("stop", 3),
        ("stop", None),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_field_and_value(name, value):
    with pytest.raises(ConfigError, match=name) as refused:
        SamplingParams(**{name: value})
    assert repr(value).strip("[]") in str(refused.value)
    assert refused.value.next


def test_the_bounds_themselves_are_allowed():
    SamplingParams(max_new_tokens=0, temperature=0, top_k=0, top_p=1, min_p=0, seed=0)
    SamplingParams(max_new_tokens=None, top_p=1e-9, min_p=1, seed=2**63 - 1)


def test_one_stop_string_or_several_become_a_tuple():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=4) == SamplingParams(stop_token_ids=[4])


def test_importing_sampling_imports_no_torch():
    code = "import sys, warcore; warcore.SamplingParams(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the batch


def test_a_greedy_batch_puts_nothing_on_the_device():
    def never(values, dtype):
        raise AssertionError(values)

    assert SamplingBatch.build([SamplingParams(top_k=3)] * 2, [1, 2], never).temperature is None


def test_a_filter_that_no_row_uses_is_not_on_the_device():
    batch = batch_of([SamplingParams(temperature=1, top_p=0.5), SamplingParams()], [1, 2])
    assert batch.temperature is not None
    assert batch.top_p is not None
    assert (batch.top_k, batch.min_p) == (None, None)


# --- random numbers


def reference_uniform(seed, position, width):
    word = 2**64 - 1

    def finalize(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return z ^ (z >> 31)

    state = (finalize(seed) + (position + 1) * 0x9E3779B97F4A7C15) & word
    return (finalize(state) >> (64 - width)) / 2**width


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 24), (torch.float64, 53)])
def test_a_uniform_is_what_plain_integers_give(dtype, width):
    seeds = [0, 1, 2, 12345, 2**31, 2**62 + 7, 2**63 - 1]
    pairs = [(s, p) for s in seeds for p in (0, 1, 2, 511, 2**20, 2**31)]
    got = uniform(torch.tensor([s for s, _ in pairs]), torch.tensor([p for _, p in pairs]), dtype)
    assert got.tolist() == [reference_uniform(s, p, width) for s, p in pairs]


def test_positions_may_be_int32_as_sequence_lengths_are():
    seeds, positions = torch.tensor([5, 6]), torch.tensor([9, 2**30])
    got = uniform(seeds, positions.int(), torch.float64)
    assert torch.equal(got, uniform(seeds, positions, torch.float64))


def test_the_finalizer_gives_splitmix64s_published_numbers():
    # The first outputs of SplitMix64 from state 1234567.
    word, state, got = 2**64 - 1, 1234567, []
    from warcore.draws import GAMMA, _finalize, _signed

    for _ in range(3):
        state = (state + GAMMA) & word
        got.append(_finalize(torch.tensor([_signed(state)])).item() & word)
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("axis", ["positions", "seeds"])
def test_uniforms_are_uniform_and_uncorrelated(axis):
    count = 1 << 16
    run, fixed = torch.arange(count), torch.full((count,), 7)
    pair = (fixed, run) if axis == "positions" else (run, fixed)
    u = uniform(*pair, torch.float64)
    bins = torch.bincount((u * 256).long(), minlength=256).double()
    chi2 = ((bins - count / 256) ** 2 / (count / 256)).sum()
    assert chi2 < 330  # 255 degrees of freedom: p = 0.001
    lag = torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].abs()
    assert lag < 4 / math.sqrt(count)


# --- drawing


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_greedy_row_takes_the_lowest_id_of_the_likeliest(dtype, temperature):
    # Rounded to few values, a large vocabulary has many ties.
    logits = some_logits(6, 5000).round().to(dtype)
    first = [row.index(max(row)) for row in logits.tolist()]
    params = [SamplingParams()] * 5 + [SamplingParams(temperature=temperature, top_k=1)]
    got = sample(logits, batch_of(params, [0] * 6), torch.zeros(6, dtype=torch.int64))
    assert got.tolist() == first


def filtered_probabilities(logits, params):
    """The distribution by definition, in plain Python: {token: probability}."""
    scaled = [x / params.temperature for x in logits.tolist()]
    top = max(scaled)
    probs = {t: math.exp(x - top) for t, x in enumerate(scaled)}

    def renormalised(kept):
        total = sum(probs[t] for t in kept)
        return {t: probs[t] / total for t in kept}

    order = sorted(probs, key=lambda t: (-probs[t], t))
    least = probs[order[: params.top_k or None][-1]]
    order = [t for t in order if probs[t] >= least]
    probs = renormalised(order)
    mass, nucleus = 0.0, []
    for token in order:
        # A token as likely as the last one kept is kept too.
        if mass >= params.top_p and probs[token] < probs[nucleus[-1]]:
            break
        nucleus.append(token)
        mass += probs[token]
    probs = renormalised(nucleus)
    floor = params.min_p * max(probs.values())
    return renormalised([t for t in nucleus if probs[t] >= floor])


FILTERS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.1, "temperature": 1.3},
]


@pytest.mark.parametrize("given", FILTERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_draws_follow_the_filtered_distribution(given, dtype):
    params = SamplingParams(**{"temperature": 1.0, **given})
    logits = some_logits(dtype=dtype)
    expected = filtered_probabilities(logits[0], params)
    count = 20_000
    counts = torch.bincount(draws(logits, params, count), minlength=VOCAB).tolist()
    assert {t for t, c in enumerate(counts) if c} <= expected.keys()
    # Cells that expect fewer than 5 draws count as one, as the chi-square test asks.
    rare = [t for t, p in expected.items() if p * count < 5]
    cells = [(counts[t], p * count) for t, p in expected.items() if t not in rare]
    if rare:
        cells.append((sum(counts[t] for t in rare), sum(expected[t] for t in rare) * count))
    chi2 = sum((seen - want) ** 2 / max(want, 1) for seen, want in cells)
    freedom = len(cells) - 1
    assert chi2 < freedom + 3.3 * math.sqrt(2 * freedom) + 4  # about p = 0.001


def test_a_row_draws_the_same_in_any_batch():
    kinds = [
        SamplingParams(temperature=0.8),
        SamplingParams(),
        SamplingParams(temperature=1.0, top_k=4),
        SamplingParams(temperature=1.2, top_p=0.9),
        SamplingParams(temperature=0.7, min_p=0.05, top_p=0.95, top_k=20),
    ]
    rows = 40
    logits = some_logits(rows)
    params = [kinds[i % len(kinds)] for i in range(rows)]
    seeds, positions = list(range(rows)), torch.arange(rows) * 3
    together = sample(logits, batch_of(params, seeds), positions).tolist()
    alone = [
        sample(logits[i : i + 1], batch_of([params[i]], [seeds[i]]), positions[i : i + 1]).item()
        for i in range(rows)
    ]
    assert together == alone


@pytest.mark.parametrize(
    "given", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-30}], ids=str
)
def test_the_tightest_filter_leaves_the_likeliest(given):
    params = SamplingParams(**{"temperature": 1.0, **given})
    logits = some_logits()
    assert set(draws(logits, params, 100).tolist()) == {int(logits.argmax())}


def test_a_filter_wider_than_the_vocabulary_changes_nothing():
    logits = some_logits()
    wide = SamplingParams(temperature=1.0, top_k=10 * VOCAB)
    plain = SamplingParams(temperature=1.0)
    assert torch.equal(draws(logits, wide, 500), draws(logits, plain, 500))


def test_a_token_of_no_probability_is_never_drawn():
    logits = torch.full((1, 8), -math.inf)
    logits[0, 5], logits[0, 6] = 0.0, 1.0
    assert set(draws(logits, SamplingParams(temperature=1.0), 2000).tolist()) == {5, 6}


def test_equal_logits_are_ordered_by_id():
    # With every logit equal, the CDF over ids is the identity: token floor(u * V).
    logits = torch.zeros(1, 16, dtype=torch.float64)
    u = uniform(torch.full((200,), 1), torch.arange(200), torch.float64)
    got = draws(logits, SamplingParams(temperature=1.0), 200)
    assert torch.equal(got, (u * 16).long())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_uniforms_are_the_same_bits_on_a_gpu():
    seeds, positions = torch.arange(1000) * 977, torch.arange(1000)
    on_gpu = uniform(seeds.cuda(), positions.cuda(), torch.float32)
    assert torch.equal(on_gpu.cpu(), uniform(seeds, positions, torch.float32))


def test_logits_that_are_no_numbers_give_an_id_that_exists():
    logits = torch.full((1, VOCAB), math.nan)
    got = sample(logits, batch_of([SamplingParams(temperature=1.0)], [1]), torch.tensor([3]))
    assert 0 <= int(got) < VOCAB


def test_tokens_as_likely_as_the_last_of_top_k_count_whatever_the_neighbours_ask_for():
    logits = torch.full((16,), -10.0)
    logits[0], logits[1:8] = 5.0, 4.0
    mine = SamplingParams(temperature=1.0, top_k=2, top_p=0.6)

    def drawn(*neighbours):
        params = [mine, *neighbours]
        batch = batch_of(params, [7] * len(params))
        rows = logits.repeat(len(params), 1)
        return [int(sample(rows, batch, torch.full((len(params),), at))[0]) for at in range(64)]

    alone = drawn()
    assert set(alone) == set(range(8))
    assert drawn(SamplingParams(temperature=1.0)) == alone
    assert drawn(SamplingParams(temperature=1.0, top_k=6)) == alone
    assert drawn(SamplingParams(temperature=1.0, top_k=12)) == alone


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-44, 1e-30])
def test_a_temperature_next_to_nothing_takes_the_likeliest(temperature):
    logits = some_logits(2)
    params = [SamplingParams(temperature=temperature)] * 2
    batch = SamplingBatch.build(params, [1, 2], as_the_engine_does)
    assert torch.equal(sample(logits, batch, torch.tensor([3, 4])), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [1e38, 1e39, 1e300])
def test_a_temperature_beyond_float32_draws_from_all_that_is_possible(temperature):
    logits = some_logits()
    logits[:, 4:] = -torch.inf
    params = [SamplingParams(temperature=temperature)] * 200
    batch = SamplingBatch.build(params, [1] * 200, as_the_engine_does)
    drawn = sample(logits.expand(200, -1), batch, torch.arange(200))
    assert set(drawn.tolist()) == {0, 1, 2, 3}


def as_the_engine_does(values, dtype):
    """Numbers cross to the device in 64 bits."""
    return torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else dtype)
