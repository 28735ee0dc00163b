"""Whole engines with standalone: the text of no speculation, fences, and what is refused."""

from __future__ import annotations

import pytest

from warcore import Engine, EngineConfig, SamplingParams, WiringError
from warcore.errors import ModelError

PROMPTS = ["one two three one two three one two", "aaaaaaaa", "x", "no word comes twice in here"]
LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)
DRAWN = SamplingParams(max_new_tokens=30, ignore_eos=True, temperature=0.8, seed=5)


def served(params, **config):
    tiny = {"model": "random:tiny", "dtype": "float64", "backend": "torch_native"}
    with Engine(EngineConfig(**{**tiny, **config})) as engine:
        outputs = engine.generate(PROMPTS, params, raw=True)
        return [output.output_ids for output in outputs], engine.stats()


def fences(stats):
    return {(fence["mode"], fence["reason"]) for fence in stats["fences"]}


@pytest.mark.parametrize("params", [LONG, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"spec_tokens": 1, "stagers": ["draft_extend"]},
        {"prefill_chunk": 3, "kv_pages": 14, "max_running_requests": 3},
        {"mixed": True, "prefill_chunk": 7},
        {"graph_runner": "full", "graph_buckets": (1, 4), "stagers": ["draft_extend"]},
        {"options": {"standalone.model": "random:tiny"}, "spec_tokens": 7},
    ],
    ids=str,
)
def test_the_text_is_that_of_no_speculation(config, params):
    expected, _ = served(params)
    got, stats = served(params, spec_algo="standalone", **config)
    assert got == expected
    assert stats["drafts"]["drafted"] > 0


def test_the_target_itself_guesses_all_of_its_own_tokens():
    options = {"standalone.model": "random:tiny"}
    _, stats = served(LONG, spec_algo="standalone", options=options)
    drafts = stats["drafts"]
    # But for the last verify of each request, beyond whose end nothing counts.
    assert drafts["accepted"] >= drafts["drafted"] - 4 * len(PROMPTS)


def test_a_prefill_is_coarse_without_a_stager_and_fine_with_one():
    _, alone = served(LONG, spec_algo="standalone")
    assert fences(alone) == {("extend", "no_stager"), ("target_verify", "fine")}
    _, staged = served(LONG, spec_algo="standalone", stagers=["draft_extend"])
    assert fences(staged) == {("extend", "fine"), ("target_verify", "fine")}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"layers": "2"}, WiringError, "2 of the 2 layers"),
        ({"model": "random:tiny", "layers": "1"}, WiringError, "both a model and a number"),
        ({"model": "nobody:knows"}, ModelError, "nobody:knows"),
    ],
    ids=str,
)
def test_what_cannot_draft_is_refused_with_its_reason(options, error, match):
    given = {f"standalone.{name}": value for name, value in options.items()}
    with pytest.raises(error, match=match) as raised:
        served(LONG, spec_algo="standalone", options=given)
    assert raised.value.next


def test_a_tree_is_refused():
    with pytest.raises(WiringError, match="trees"):
        served(LONG, spec_algo="standalone", spec_topk=2)
