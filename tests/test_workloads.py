"""Whatever is drawn, an overlapped run under a seeded schedule writes what a quiet run writes.

Each seed draws a workload (arrivals, lengths, sampling, stop strings, aborts) and the options of an
engine (backend, windows, pages so few that requests step back, chunks, mixing, loop, fence, graphs,
who drafts how much, stagers). The interleaving of the streams is drawn too, at every operation.
Memory that nobody has written holds NaN. The reference serves one request at a time, eagerly and in
the normal loop, from one pool for all layers, and nobody drafts. A failure is replayed by its seed:

    .venv/bin/python tests/test_workloads.py [ALGORITHM:]SEED
"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch

import warcore_backend_deepseek_v4.backend
import warcore_backend_torch_native.backend
import warcore_backend_trtllm_mha.torch_attention
from warcore import Draft, Engine, EngineConfig, SamplingParams, SpecAlgorithm
from warcore_backend_torch_native import TorchNative

PLAIN, DRAFTED = 100, 100
"""Seeds without drafts, and for each algorithm."""
ALL = 2000
# `python -m warcore_spec_eagle.train --quick`: now and then it is right.
TRAINED = Path(__file__).parent / "vectors" / "eagle_tiny.safetensors"
LONGEST_PROMPT, LONGEST_ANSWER = 40, 24
TINY = {
    "model": "random:tiny",
    "dtype": "float64",
    "context_length": LONGEST_PROMPT + LONGEST_ANSWER + 1,
}


def short_lengths():
    """Captured lengths that these sequences cross: 16, 32, 64 in place of 128 at least."""
    modules = (
        warcore_backend_torch_native.backend,
        warcore_backend_trtllm_mha.torch_attention,
        warcore_backend_deepseek_v4.backend,
    )
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "SMALLEST", 16))
        return stack.pop_all()


def options(draw, algorithm=None):
    """How the engine of this seed is set up; always large enough for one request alone."""
    page_size = draw.choice([1, 2, 4, 16])
    longest = LONGEST_PROMPT + LONGEST_ANSWER
    fewest = -(-longest // page_size)
    chosen = {
        "page_size": page_size,
        "kv_pages": draw.choice([fewest, fewest + 2, 2 * fewest, 6 * fewest]),
        "prefill_chunk": draw.choice([1, 3, 7, 16, 512]),
        "max_running_requests": draw.choice([1, 2, 3, 5, 8]),
        "mixed": draw.random() < 0.3,
        "loop": draw.choice(["overlap", "overlap", "overlap", "normal"]),
        "fence": draw.choice(["declared", "declared", "declared", "coarse"]),
        "prefill_read_done": draw.random() < 0.8,
        "host": draw.choices([f"seeded:{draw.randrange(10**6)}", "threads", "inline"], [8, 1, 1])[
            0
        ],
    }
    if chosen["loop"] == "normal":
        chosen["fence"] = "declared"  # it has none, and says so if one is asked for
    chosen |= {} if algorithm is None else ALGORITHMS[algorithm](draw)
    chosen["kv_pages"] += -(-(chosen.get("spec_tokens", -1) + 1) // page_size)
    chosen |= graphs(draw, chosen)
    options, attending = chosen.pop("options", {}), served(draw, chosen)
    return chosen | attending | {"options": options | attending["options"]}


def served(draw, chosen):
    """How far the layers see, and who attends: one backend, or one for prefills and another."""
    options = windows(draw)
    able = ["torch_native"]
    if chosen["page_size"] == 16:
        able.append("trtllm_mha")
    if options["random.window"] != "0":
        able.append("deepseek_v4")
    prefills, others = draw.choice(able), draw.choice(able)
    if draw.random() < 0.5:
        others = prefills
    if "deepseek_v4" in (prefills, others):
        # Whole graphs hold dense prefills only, and what is named has to capture something.
        least = min(chosen.get("graph_prefill_buckets") or [0])
        least = least if chosen["graph_runner"] == "full" else 0
        above = draw.choice([tokens for tokens in (0, 4, 12, 512) if tokens >= least])
        options["deepseek_v4.sparse_above"] = str(above)
    if prefills == others:
        return {"backend": prefills, "options": options}
    return {"prefill_backend": prefills, "decode_backend": others, "options": options}


def drafts(algorithm, draw):
    return {"spec_algo": algorithm, "spec_tokens": draw.randint(1, 7)}


def trees(algorithm, draw):
    """Chains or trees."""
    chosen = drafts(algorithm, draw)
    if draw.random() < 0.5:
        chosen["spec_topk"] = draw.randint(1, chosen["spec_tokens"])
    return chosen


def staged(chosen, draw):
    """With a stager or without one."""
    return chosen | {"stagers": draw.choice([[], ["draft_extend"]])}


class Right(SpecAlgorithm):
    """The target itself drafts, in a runner of its own: it is always right about the likeliest."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self._runner = ctx.make_runner(ctx.model)

    def draft(self, batch):
        tokens = [self._runner.execute(batch).logits.argmax(-1)]
        while len(tokens) < self.ctx.num_tokens:
            batch = batch.after(tokens[-1])
            tokens.append(self._runner.execute(batch).logits.argmax(-1))
        return Draft(torch.stack(tokens, 1))

    def draft_extend(self, batch, accepted):
        self._runner.execute(batch)

    def last_shared_read_runner(self, forward_batch):
        return self._runner


class Wrong(SpecAlgorithm):
    """Says one token again and again."""

    later_prefill_reader = False
    tree = True

    def draft(self, batch):
        shape = batch.size, self.ctx.num_tokens
        return Draft(torch.full(shape, 5), parents=self._parents(batch))

    def _parents(self, batch):
        """A bush: each node follows the newest token or the node before, in turn."""
        if self.ctx.spec.topk == 1:
            return None
        nodes = torch.arange(self.ctx.num_tokens)
        return torch.where(nodes % 2 == 0, 0, nodes).expand(batch.size, -1)


class Ragged(Wrong):
    """Means fewer of its tokens here, more there, and none at times."""

    def draft(self, batch):
        lengths = batch.positions % (self.ctx.num_tokens + 1)
        tokens = batch.tokens[:, None].repeat(1, self.ctx.num_tokens)
        return Draft(tokens, parents=self._parents(batch), lengths=lengths)


class Anything(Wrong):
    """Draws, without a word on what from: a token stands if the target says the same."""

    def draft(self, batch):
        shape = batch.size, self.ctx.num_tokens
        draws = torch.Generator().manual_seed(int(batch.positions.sum()))
        tokens = torch.randint(97, 123, shape, generator=draws)
        return Draft(tokens, parents=self._parents(batch))


def eagle(draw):
    heads = ["random", str(TRAINED)]
    return staged(trees("eagle", draw), draw) | {"options": {"eagle.head": draw.choice(heads)}}


ALGORITHMS = {
    "ngram": lambda draw: trees("ngram", draw),
    "standalone": lambda draw: staged(drafts("standalone", draw), draw),
    "eagle": eagle,
    "right": lambda draw: staged(drafts(Right, draw), draw),
    "wrong": lambda draw: trees(Wrong, draw),
    "ragged": lambda draw: trees(Ragged, draw),
    "anything": lambda draw: trees(Anything, draw),
}
"""Plugins, and drafters that are always right, hardly ever, or here and there."""


def windows(draw):
    """How far the layers see: in half of the engines some have a pool of their own."""
    window = draw.choice([0, 0, 0, 1, 4, 13, LONGEST_PROMPT + LONGEST_ANSWER])
    layers = draw.choice(["alternate", "all"])
    return {"random.window": str(window), "random.window_layers": layers}


def graphs(draw, chosen):
    """What is captured: often not all sizes, so that replays and eager steps follow one another."""
    # Most of a seed's time goes into captures.
    runner = draw.choice(["none", "none", "full", "breakable"])
    if runner == "none":
        return {"graph_runner": runner}
    # Each request that decodes holds a page.
    most = min(chosen["max_running_requests"], chosen["kv_pages"])
    sizes = sorted(draw.sample(range(1, most + 1), draw.randint(1, min(2, most))))
    prefills = [tokens for tokens in (1, 3, 8, 16, 32) if tokens <= chosen["prefill_chunk"]]
    return {
        "graph_runner": runner,
        "graph_buckets": sizes,
        "graph_prefill_buckets": draw.choice(
            [None, sorted(draw.sample(prefills, draw.randint(1, min(2, len(prefills)))))]
        ),
        "graph_positions": draw.choice([None, None, 32 * sizes[0]]),
    }


def request(draw):
    """One request: its prompt, how it samples, the step it arrives at and the one it is aborted at.

    The seeds of the draws are few, so that the reference is computed once for many workloads.
    """
    prompt = tuple(draw.choices(range(97, 123), k=draw.randint(1, LONGEST_PROMPT)))
    params = {
        "max_new_tokens": draw.choice([0, 1, 2, 5, 12, LONGEST_ANSWER]),
        "ignore_eos": draw.random() < 0.5,
    }
    if draw.random() < 0.4:
        params |= {"temperature": draw.choice([0.5, 1.0]), "seed": draw.randrange(100)}
        params |= draw.choice([{}, {"top_k": 8}, {"top_p": 0.8}, {"min_p": 0.1}])
    if draw.random() < 0.3:
        params["stop"] = (chr(draw.randrange(97, 123)), "zz")
    arrival = draw.choice([0, 0, 0, draw.randrange(20)])
    abort = arrival + draw.randrange(15) if draw.random() < 0.2 else None
    return prompt, SamplingParams(**params), arrival, abort


LAST = (
    tuple(b"abcab"),
    SamplingParams(max_new_tokens=LONGEST_ANSWER, ignore_eos=True),
    20,
    None,
)
"""Comes when the others have, and has something to draft, whatever else was drawn."""


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are not worth a second thread, which would only be waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class OnePool(TorchNative):
    """Keeps whole sequences in every layer."""

    window_pool = False


def reference(options):
    """The options of the target alone."""
    return {"window": options["random.window"], "layers": options["random.window_layers"]}


@cache
def quiet(window, layers):
    """The reference engine: normal loop, no threads, room for everything."""
    return Engine(
        EngineConfig(
            model="random:tiny",
            backend=OnePool,
            options={"random.window": window, "random.window_layers": layers},
            dtype="float64",
            loop="normal",
            host="inline",
            kv_pages=64,
            graph_runner="none",
        )
    )


def drive(engine, requests):
    """Serve `requests` as they arrive; outputs by request, and the engine's step of each abort."""
    numbers, outputs, step = {}, {}, 0
    while len(outputs) < len(requests):
        for which, (prompt, params, arrival, _) in enumerate(requests):
            if arrival == step:
                numbers[engine.add_request(prompt, params)] = which
        for number, which in numbers.items():
            if requests[which][3] == step:
                engine.abort(number)
        for output in engine.step():
            outputs[numbers[output.index]] = output
        step += 1
        assert step < 20_000, "the workload does not end"
    return outputs


def spoil(engine):
    """Put NaN where nobody has written anything yet."""
    with torch.inference_mode():
        runners = [engine._assembly.runner, *(r for r, _ in engine._assembly.wired.drafts)]
        for runner in runners:
            for layer in runner.recorded.backend.ctx.kv:
                for memory in layer.values():
                    memory[1:] = float("nan")


def check(name):
    """Print how to replay the seed, whatever goes wrong in it; then let it."""
    try:
        run(name)
    except BaseException:
        print(f"replay: .venv/bin/python tests/test_workloads.py {name}")  # noqa: T201
        raise


def drawn(name):
    """The options and the requests of `[ALGORITHM:]SEED`."""
    draw = random.Random(name)
    algorithm = name.rpartition(":")[0] or None
    config = options(draw, algorithm)
    requests = [request(draw) for _ in range(draw.randint(2, 6))]
    return config, requests if algorithm is None else [*requests, LAST]


def run(name):
    config, requests = drawn(name)
    with short_lengths(), Engine(EngineConfig(**TINY, **config)) as engine:
        spoil(engine)
        outputs = drive(engine, requests)
        engine.step()  # collect what was still in flight
        drafts = engine.stats()["drafts"]
        scheduler = engine._assembly.scheduler
        assert len(scheduler.rows) == scheduler.rows.capacity
        assert len(scheduler.pages) == scheduler.pages.capacity
        assert scheduler.windows is None or len(scheduler.windows) == scheduler.windows.capacity
    for which, (prompt, params, _, _) in enumerate(requests):
        got = outputs[which]
        (want,) = quiet(**reference(config["options"])).generate([prompt], params)
        where = f"{name}, request {which}, {config}"
        assert got.error is None, where
        if got.finish_reason == "abort":
            assert got.output_ids == want.output_ids[: len(got.output_ids)], where
        else:
            assert got.output_ids == want.output_ids, where
            assert (got.text, got.finish_reason) == (want.text, want.finish_reason), where
        if config.get("spec_algo") is Right and not params.temperature:
            assert got.accepted == got.drafted, where
    assert drafts is None or drafts["drafted"], f"{name} is inconclusive: nobody drafted a token"


@pytest.mark.parametrize("seed", range(PLAIN))
def test_workload(seed):
    check(str(seed))


@pytest.mark.parametrize("seed", range(DRAFTED))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_workload_with_drafts(algorithm, seed):
    check(f"{algorithm}:{seed}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PLAIN, ALL))
def test_more_workloads(seed):
    check(str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(DRAFTED, ALL // 2))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_workloads_with_drafts(algorithm, seed):
    check(f"{algorithm}:{seed}")


def test_the_workloads_retract_abort_stop_mix_and_replay():
    """A draw that never meets the hard cases would prove nothing."""
    cases = ["retracts", "mixed", "coarse", "fine", "replays", "eager", "lengths", "windows"]
    seen = dict.fromkeys([*cases, "two backends", *ALGORITHMS], 0)
    reasons, backends = set(), set()
    names = [f"{algorithm}:{seed}" for algorithm in ALGORITHMS for seed in range(8)]
    for name in [*map(str, range(30)), *names]:
        config, requests = drawn(name)
        config["host"] = "inline"
        with short_lengths(), Engine(EngineConfig(**TINY, **config)) as engine:
            reasons |= {output.finish_reason for output in drive(engine, requests).values()}
            stats = engine.stats()
            facts = engine._assembly.describe()
        backends.add(facts["backend"])
        seen["two backends"] += "prefill_backend" in config
        seen["windows"] += (facts["swa_pages"] or facts["kv_pages"]) < facts["kv_pages"]
        seen["retracts"] += stats["retracts"]
        replays = stats["graphs"]["replays"] if stats["graphs"] else 0
        seen["replays"] += replays
        seen["eager"] += bool(replays) and stats["steps"] > replays
        named = [*config.get("graph_buckets", ()), *(config.get("graph_prefill_buckets") or ())]
        seen["lengths"] += bool(replays) and stats["graphs"]["captures"] > 2 * len(named)
        if stats["drafts"] is not None:
            seen[name.partition(":")[0]] += stats["drafts"]["drafted"]
        for fence in stats["fences"]:
            seen["mixed"] += fence["mode"] == "mixed"
            seen["fine" if fence["reason"] == "fine" else "coarse"] += fence["count"]
    assert reasons == {"stop", "length", "abort"}
    assert backends >= {"torch_native", "trtllm_mha", "deepseek_v4"}
    assert all(seen.values()), seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    for given in sys.argv[1:]:
        run(given)
        print(f"{given}: as it should be")  # noqa: T201
