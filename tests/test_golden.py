"""The real model, in fp32, writes the golden tokens however it is scheduled."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from warcore import Engine, EngineConfig, SamplingParams

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "golden_smollm2.json").read_text())
CASES = GOLDEN["cases"]

FACTORS = {
    "together": (True, False),
    "prefill_chunk": (512, 7),
    "page_size": (16, 1),
    "loop": ("overlap", "normal"),
    "host": ("inline", "threads"),
}
PRODUCT = list(itertools.product((0, 1), repeat=len(FACTORS)))
PAIRWISE = [(0, 0, 0, 0, 0), (0, 1, 1, 1, 1), (1, 0, 1, 1, 0), (1, 1, 0, 0, 1), (1, 1, 1, 0, 0),
            (0, 0, 0, 1, 1), (1, 0, 1, 0, 1), (0, 1, 0, 1, 0)]  # fmt: skip

pytestmark = pytest.mark.model


def settings(row):
    chosen = {name: levels[i] for (name, levels), i in zip(FACTORS.items(), row, strict=True)}
    return chosen.pop("together"), chosen


def answers(together, config):
    """The output ids of every golden prompt; all in one batch, or one prompt at a time."""
    with Engine(EngineConfig(model="smollm2", dtype="float32", context_length=256, **config)) as e:
        prompts = [case["prompt"] for case in CASES]
        params = [SamplingParams(max_new_tokens=len(case["output_ids"])) for case in CASES]
        if together:
            return e.generate(prompts, params)
        return [e.generate(p, one)[0] for p, one in zip(prompts, params, strict=True)]


def check(row):
    together, config = settings(row)
    for case, output in zip(CASES, answers(together, config), strict=True):
        assert output.error is None
        assert output.prompt_ids == case["prompt_ids"]
        assert output.output_ids == case["output_ids"], case["prompt"]


def test_the_rows_cover_every_pair_of_levels():
    for a, b in itertools.combinations(range(len(FACTORS)), 2):
        assert {(row[a], row[b]) for row in PAIRWISE} == set(itertools.product((0, 1), repeat=2))


@pytest.mark.parametrize("row", PAIRWISE, ids=str)
def test_golden_tokens(row):
    check(row)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in PRODUCT if row not in PAIRWISE], ids=str)
def test_golden_tokens_in_every_combination(row):
    check(row)


def test_the_text_is_that_of_the_golden_tokens():
    with Engine(EngineConfig(model="smollm2", dtype="float32", context_length=256)) as engine:
        (output,) = engine.generate(CASES[0]["prompt"])
    assert output.text + "<|im_end|>" == CASES[0]["text"]
    assert output.finish_reason == "stop"
