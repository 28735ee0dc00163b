"""The engine on a CUDA device: every way of running steps writes the same tokens.

In fp64 nothing but a defect can tell two ways apart. In fp32 the order of a sum may, once in many
thousand tokens of these models: if only the fp32 case of a test fails, look at the scores first.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from warcore import Engine, EngineConfig, ForwardMode, SamplingParams, WiringError
from warcore.fence import ReadFence
from warcore_backend_torch_native import TorchNative

pytestmark = pytest.mark.gpu

BUCKETS, PREFILLS = (1, 4), (16, 64)
SMALL = {
    "device": "cuda",
    "page_size": 4,
    "max_running_requests": 8,
    "prefill_chunk": 64,
    "graph_buckets": BUCKETS,
    "graph_prefill_buckets": PREFILLS,
}
DRAWN = SamplingParams(
    max_new_tokens=14, temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=3, ignore_eos=True
)
"""Ends before the others, so that the batch shrinks past a bucket."""
BOTH = pytest.mark.parametrize("runner", ["full", "breakable"])
EXACT = pytest.mark.parametrize("dtype", ["float64", "float32"])


def config(**given):
    chosen = {"model": "random:tiny", "dtype": "float64", **SMALL, **given}
    if chosen.get("graph_runner") == "none":
        for name in ("graph_buckets", "graph_prefill_buckets"):
            del chosen[name]
    return EngineConfig(**chosen)


@pytest.fixture(scope="module")
def engines():
    """Open engines by what they were asked for; each is built once."""
    with ExitStack() as stack:
        known = {}

        def get(**given):
            key = tuple(sorted(given.items()))
            if key not in known:
                known[key] = stack.enter_context(Engine(config(**given)))
            return known[key]

        yield get


def prompts(count, length=9):
    return [[(7 * row + 3 * i) % 250 + 3 for i in range(length + row)] for row in range(count)]


def params(count):
    """Greedy and drawn requests of different lengths, the last one longest."""
    greedy = [SamplingParams(max_new_tokens=16 + 2 * row, ignore_eos=True) for row in range(count)]
    return [DRAWN if row % 3 == 1 else one for row, one in enumerate(greedy)]


def tokens(engine, asked, how):
    outputs = engine.generate(asked, how, raw=True)
    assert [output.error for output in outputs] == [None] * len(asked)
    return [output.output_ids for output in outputs]


def replays(engine):
    return engine.stats()["graphs"]["replays"]


# Tokens


@BOTH
@EXACT
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8])
def test_replays_write_what_eager_steps_write_around_every_bucket(engines, runner, dtype, count):
    asked, how = prompts(count), params(count)
    eager = tokens(engines(graph_runner="none", loop="normal", dtype=dtype), asked, how)
    graph = engines(graph_runner=runner, dtype=dtype)
    before = replays(graph)
    assert tokens(graph, asked, how) == eager
    assert replays(graph) > before


@BOTH
@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65, 130])
def test_replayed_prefills_write_what_eager_ones_write(engines, runner, length):
    asked = prompts(1, length)
    how = SamplingParams(max_new_tokens=4, ignore_eos=True)
    eager = tokens(engines(graph_runner="none", loop="normal", dtype="float64"), asked, how)
    assert tokens(engines(graph_runner=runner, dtype="float64"), asked, how) == eager


@BOTH
def test_prefills_are_replayed_where_at_most_half_is_padding(engines, runner):
    engine = engines(graph_runner=runner, dtype="float64")
    one = SamplingParams(max_new_tokens=1, ignore_eos=True)

    def replayed(length):
        before = replays(engine)
        tokens(engine, prompts(1, length), one)
        return replays(engine) - before

    assert [replayed(length) for length in (7, 8, 16, 17, 31, 32, 64)] == [0, 1, 1, 0, 0, 1, 1]


@BOTH
def test_sequences_that_outgrow_a_length_bucket_go_on(engines, runner):
    asked, how = prompts(4, 100), SamplingParams(max_new_tokens=60, ignore_eos=True)
    eager = tokens(engines(graph_runner="none", loop="normal", dtype="float64"), asked, how)
    assert tokens(engines(graph_runner=runner, dtype="float64"), asked, how) == eager


@pytest.mark.parametrize("runner", ["none", "full", "breakable"])
@pytest.mark.parametrize("fence", ["declared", "coarse"])
def test_the_overlap_loop_writes_what_the_normal_loop_writes(engines, runner, fence):
    asked, how = prompts(8), params(8)
    normal = tokens(engines(graph_runner="none", loop="normal", dtype="float64"), asked, how)
    overlap = engines(graph_runner=runner, dtype="float64", fence=fence)
    for _ in range(3):
        assert tokens(overlap, asked, how) == normal


@pytest.mark.parametrize("runner", ["none", "full", "breakable"])
def test_so_few_pages_that_requests_step_back_change_no_token(engines, runner):
    asked, how = prompts(8), params(8)
    normal = tokens(engines(graph_runner="none", loop="normal", dtype="float64"), asked, how)
    tight = engines(graph_runner=runner, dtype="float64", kv_pages=40, context_length=64)
    assert tokens(tight, asked, how) == normal
    assert tight.stats()["retracts"] > 0


@BOTH
def test_window_layers_replay(engines, runner):
    asked, how = prompts(4, 30), params(4)
    model = "random:swa-tiny"
    eager = tokens(
        engines(model=model, graph_runner="none", loop="normal", dtype="float64"), asked, how
    )
    assert tokens(engines(model=model, graph_runner=runner, dtype="float64"), asked, how) == eager


@pytest.mark.parametrize("runner", ["none", "full", "breakable"])
def test_bf16_runs_and_repeats_itself(engines, runner):
    engine = engines(model="random:small", graph_runner=runner, dtype="bfloat16")
    how = SamplingParams(max_new_tokens=24, ignore_eos=True)
    first = tokens(engine, prompts(4), how)
    assert [len(each) for each in first] == [24] * 4
    assert tokens(engine, prompts(4), how) == first


# The fence


@BOTH
def test_the_fence_of_a_replay_is_the_ticket_of_its_marker(engines, runner, monkeypatch):
    engine = engines(graph_runner=runner, dtype="float64")
    heard, told = [], ReadFence.offer

    def offer(self, who, word):
        heard.append(word)
        told(self, who, word)

    monkeypatch.setattr(ReadFence, "offer", offer)
    tokens(engine, prompts(1), SamplingParams(max_new_tokens=8, ignore_eos=True))
    tickets = [word.ticket for word in heard if word.mode is ForwardMode.DECODE]
    assert len(tickets) >= 7
    assert len({ticket.event for ticket in tickets}) == 1
    assert tickets[0].event.external
    generations = [ticket.generation for ticket in tickets]
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("runner", ["none", "full", "breakable"])
def test_every_fence_of_a_decode_step_is_fine(engines, runner):
    engine = engines(graph_runner=runner, dtype="float64")
    tokens(engine, prompts(5), params(5))
    decodes = {row["reason"] for row in engine.stats()["fences"] if row["mode"] == "decode"}
    assert decodes == {"fine"}


# Failures


class Reading(TorchNative):
    """Reads a length on the host where a graph would be captured."""

    def init_forward_metadata_in_graph(self, batch):
        super().init_forward_metadata_in_graph(batch)
        self.longest = batch.seq_lens.max().item()


@BOTH
def test_a_host_sync_in_a_captured_step_is_refused_and_the_next_engine_works(engines, runner):
    with pytest.raises(WiringError, match=r"cannot be captured[\s\S]*max\(\)\.item"):
        Engine(config(backend=Reading, graph_runner=runner))
    torch.cuda.empty_cache()
    with Engine(config(graph_runner=runner)) as engine:
        asked, how = prompts(2), params(2)
        eager = tokens(engines(graph_runner="none", loop="normal", dtype="float64"), asked, how)
        assert tokens(engine, asked, how) == eager


class Failing(TorchNative):
    """Fails between the offer of a step's ticket and its replay, or in a break; once."""

    failing = False

    def forward(self, q, k, v, layer, batch):
        if self.failing and layer.index == 1:
            type(self).failing = False
            raise LookupError("mine")
        return super().forward(q, k, v, layer, batch)


def test_a_replay_that_fails_in_a_break_ends_its_requests_and_no_others(engines):
    how = SamplingParams(max_new_tokens=8, ignore_eos=True)
    with Engine(config(backend=Failing, graph_runner="breakable")) as engine:
        expected = tokens(engine, prompts(2), how)
        Failing.failing = True
        outputs = engine.generate(prompts(2), how, raw=True)
        assert all("mine" in str(output.error) for output in outputs)
        assert tokens(engine, prompts(2), how) == expected


def test_a_pool_of_graphs_says_what_it_keeps(engines):
    facts = engines(graph_runner="full", dtype="float64").stats()["graphs"]
    assert facts["captures"] > len(BUCKETS)
    assert facts["bytes"] > 0
