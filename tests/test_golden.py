"""The real model, in fp32, writes the golden tokens however it is scheduled."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from warcore import Engine, EngineConfig, SamplingParams
from warcore_backend_torch_native import TorchNative

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "golden_smollm2.json").read_text())
CASES = GOLDEN["cases"]

FACTORS = {
    "together": (True, False),
    "prefill_chunk": (512, 7),
    "page_size": (16, 1),
    "loop": ("overlap", "normal"),
    "host": ("inline", "threads"),
    "graphs": (
        {"graph_runner": "none"},
        {"graph_runner": "full"},
        {"graph_runner": "breakable", "graph_buckets": (1, 4)},
        {"graph_runner": "full", "graph_buckets": (2, 6), "graph_prefill_buckets": (4, 7)},
    ),
}
LEVELS = [range(len(levels)) for levels in FACTORS.values()]
PRODUCT = list(itertools.product(*LEVELS))
PAIRWISE = [
    (0, 0, 0, 1, 1, 2), (1, 1, 1, 0, 0, 2), (0, 1, 0, 0, 1, 1), (1, 0, 1, 1, 0, 1),
    (0, 1, 1, 1, 1, 3), (1, 0, 0, 0, 0, 3), (1, 1, 0, 1, 1, 0), (0, 0, 1, 0, 0, 0),
]  # fmt: skip

pytestmark = pytest.mark.model


def settings(row):
    chosen = {name: levels[i] for (name, levels), i in zip(FACTORS.items(), row, strict=True)}
    together, graphs = chosen.pop("together"), chosen.pop("graphs")
    return together, chosen | graphs


def small(**config):
    """An engine of the real model with no more room than the golden prompts need."""
    sizes = {"context_length": 256, "max_running_requests": len(CASES)}
    return EngineConfig(model="smollm2", dtype="float32", **{**sizes, **config})


def answers(together, config, most):
    """The output of every golden prompt, up to `most` tokens; in one batch, or one at a time."""
    with Engine(small(**config)) as e:
        prompts = [case["prompt"] for case in CASES]
        params = [SamplingParams(max_new_tokens=len(case["output_ids"][:most])) for case in CASES]
        if together:
            return e.generate(prompts, params)
        return [e.generate(p, one)[0] for p, one in zip(prompts, params, strict=True)]


def check(row, most=None):
    together, config = settings(row)
    for case, output in zip(CASES, answers(together, config, most), strict=True):
        assert output.error is None
        assert output.prompt_ids == case["prompt_ids"]
        assert output.output_ids == case["output_ids"][:most], case["prompt"]


def test_the_rows_cover_every_pair_of_levels():
    for a, b in itertools.combinations(range(len(FACTORS)), 2):
        pairs = set(itertools.product(LEVELS[a], LEVELS[b]))
        assert {(row[a], row[b]) for row in PAIRWISE} == pairs


@pytest.mark.parametrize("row", PAIRWISE, ids=str)
def test_golden_tokens(row):
    check(row, most=24)


@pytest.mark.slow
@pytest.mark.parametrize("row", PRODUCT, ids=str)
def test_golden_tokens_in_every_combination(row):
    check(row)


@pytest.mark.parametrize("runner", ["full", "breakable"])
def test_golden_tokens_at_every_bucket_boundary(runner):
    """Batches of a bucket's size, one less and one more; beyond the largest they run eagerly."""
    tokens = 10
    with Engine(small(graph_runner=runner, graph_buckets=(2, 4), context_length=128)) as engine:
        for size in range(1, 6):
            cases = [CASES[(size + place) % len(CASES)] for place in range(size)]
            params = SamplingParams(max_new_tokens=tokens)
            outputs = engine.generate([case["prompt"] for case in cases], params)
            for case, output in zip(cases, outputs, strict=True):
                assert output.output_ids == case["output_ids"][:tokens], (size, case["prompt"])
        stats = engine.stats()
        assert 0 < stats["graphs"]["replays"] < stats["steps"]


@pytest.mark.parametrize("runner", ["none", "full"])
@pytest.mark.parametrize("backend", ["trtllm_mha"])
@pytest.mark.parametrize("most", [8, pytest.param(None, marks=pytest.mark.slow)])
def test_golden_tokens_with_each_backend(backend, runner, most):
    sizes = {"graph_buckets": (len(CASES),)} if runner == "full" else {}
    config = {"backend": backend, "graph_runner": runner, **sizes}
    for case, output in zip(CASES, answers(True, config, most), strict=True):
        assert output.output_ids == case["output_ids"][:most], case["prompt"]


WINDOWED = [
    ("torch_native", "none", {}),
    ("deepseek_v4", "none", {"deepseek_v4.sparse_above": "8"}),
    ("deepseek_v4", "full", {}),
    pytest.param("torch_native", "full", {}, marks=pytest.mark.slow),
    pytest.param("deepseek_v4", "none", {}, marks=pytest.mark.slow),
    pytest.param(
        "deepseek_v4", "breakable", {"deepseek_v4.sparse_above": "8"}, marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("backend", "runner", "more"), WINDOWED)
def test_golden_tokens_with_windows_as_long_as_the_context(backend, runner, more):
    """Every other layer has a pool of its own, and forgets nothing that the model sees."""
    options = {"smollm2.window": "256", "smollm2.window_layers": "alternate", **more}
    sizes = {} if runner == "none" else {"graph_buckets": (2,)}
    with Engine(small(backend=backend, graph_runner=runner, options=options, **sizes)) as engine:
        assert engine._assembly.describe()["swa_pages"]
        prompts = [case["prompt"] for case in CASES[:2]]
        outputs = engine.generate(prompts, SamplingParams(max_new_tokens=12))
    for case, output in zip(CASES, outputs, strict=False):
        assert output.output_ids == case["output_ids"][:12], case["prompt"]


class OnePool(TorchNative):
    """Keeps whole sequences in every layer, and masks what lies before a window."""

    window_pool = False


def windowed(backend, runner="none", **options):
    """What follows two golden prompts when every other layer sees 16 tokens only."""
    options = {"smollm2.window": "16", "smollm2.window_layers": "alternate", **options}
    with Engine(small(backend=backend, graph_runner=runner, options=options)) as engine:
        pooled = engine._assembly.describe()["swa_pages"] is not None
        params = SamplingParams(max_new_tokens=20, ignore_eos=True)
        outputs = engine.generate([case["prompt"] for case in CASES[:2]], params)
    return [output.output_ids for output in outputs], pooled


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("backend", "runner", "options"),
    [
        ("deepseek_v4", "full", {"deepseek_v4.sparse_above": "8"}),
        pytest.param("torch_native", "none", {}, marks=SLOW),
        pytest.param("trtllm_mha", "full", {}, marks=SLOW),
    ],
)
def test_windows_shorter_than_the_text_give_what_a_mask_over_all_of_it_gives(
    backend, runner, options
):
    expected, pooled = windowed(OnePool)
    assert not pooled
    assert expected != [case["output_ids"][:20] for case in CASES[:2]]
    assert windowed(backend, runner, **options) == (expected, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runner", "above", "prefill_chunk"), [("none", 0, 512), ("full", 16, 7), ("breakable", 4, 7)]
)
def test_golden_tokens_to_their_end_with_a_window_in_every_layer(runner, above, prefill_chunk):
    options = {"smollm2.window": "256", "deepseek_v4.sparse_above": str(above)}
    config = {"backend": "deepseek_v4", "graph_runner": runner, "prefill_chunk": prefill_chunk}
    for case, output in zip(
        CASES, answers(together=True, config=config | {"options": options}, most=None), strict=True
    ):
        assert output.output_ids == case["output_ids"], case["prompt"]


DRAFTED = [
    {"spec_algo": "eagle", "graph_runner": "none"},
    {"spec_algo": "eagle", "spec_tokens": 6, "spec_topk": 2, "stagers": ("draft_extend",)},
    pytest.param({"spec_algo": "eagle", "prefill_chunk": 7, "mixed": True}, marks=pytest.mark.slow),
    pytest.param({"spec_algo": "ngram"}, marks=pytest.mark.slow),
    pytest.param({"spec_algo": "standalone", "stagers": ("draft_extend",)}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("config", DRAFTED, ids=str)
@pytest.mark.parametrize(
    ("count", "most"), [(2, 16), pytest.param(len(CASES), None, marks=pytest.mark.slow)]
)
def test_golden_tokens_with_drafts(config, count, most):
    """Nobody sees in the text who drafted; only the drafts that stood are counted."""
    sizes = {} if "graph_runner" in config else {"graph_buckets": (2,)}
    cases = CASES[:count]
    with Engine(small(**config, **sizes)) as engine:
        params = [SamplingParams(max_new_tokens=len(case["output_ids"][:most])) for case in cases]
        outputs = engine.generate([case["prompt"] for case in cases], params)
        drafts = engine.stats()["drafts"]
    for case, output in zip(cases, outputs, strict=True):
        assert output.output_ids == case["output_ids"][:most], case["prompt"]
    assert drafts["drafted"] > 0
    if config["spec_algo"] == "eagle":
        assert drafts["accepted"] > 0


def test_the_text_is_that_of_the_golden_tokens():
    with Engine(small()) as engine:
        (output,) = engine.generate(CASES[0]["prompt"])
    assert output.text + "<|im_end|>" == CASES[0]["text"]
    assert output.finish_reason == "stop"
