"""Whole engines with ngram: the text of no speculation, and what is proposed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from warcore import Engine, EngineConfig, SamplingParams, WiringError
from warcore.errors import ConfigError
from warcore_spec_ngram import Ngram

PROMPTS = ["one two three one two three one two", "aaaaaaaa", "x", "no word comes twice in here"]
LONG = SamplingParams(max_new_tokens=40, ignore_eos=True)
DRAWN = SamplingParams(max_new_tokens=40, ignore_eos=True, temperature=0.8, seed=5)


def served(params, **config):
    tiny = {"model": "random:tiny", "dtype": "float64", "backend": "torch_native"}
    with Engine(EngineConfig(**{**tiny, **config})) as engine:
        outputs = engine.generate(PROMPTS, params, raw=True)
        return [output.output_ids for output in outputs], engine.stats()


@pytest.mark.parametrize("params", [LONG, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"spec_tokens": 1},
        {"spec_tokens": 8, "spec_topk": 3},
        {"prefill_chunk": 3, "kv_pages": 14, "max_running_requests": 3},
        {"mixed": True, "prefill_chunk": 7},
        {"graph_runner": "full", "graph_buckets": (1, 4)},
        {"options": {"ngram.longest": "2"}},
    ],
    ids=str,
)
def test_the_text_is_that_of_no_speculation(config, params):
    expected, _ = served(params)
    got, stats = served(params, spec_algo="ngram", **config)
    assert got == expected
    assert stats["drafts"]["drafted"] > 0
    fences = {(fence["mode"], fence["reason"]) for fence in stats["fences"]}
    assert fences <= {("extend", "fine"), ("target_verify", "fine"), ("mixed", "mode_not_extend")}


def algorithm(tokens, **options):
    """Ngram without an engine, with two rows."""
    spec = SimpleNamespace(num_tokens=tokens, topk=1, max_context=32, device=torch.device("cpu"))
    relay = {"history": torch.zeros(3, 32, dtype=torch.int32)}
    context = SimpleNamespace(
        spec=spec, num_tokens=tokens, relay=relay, options=Ngram.Options(**options)
    )
    return Ngram(context)


def passed(algo, text):
    """A prefill of all of `text` but its last token, in row 2; the decode batch of that one."""
    tokens, count = torch.tensor(list(text)), len(text)
    rows = torch.tensor([2])
    algo.draft_extend(
        SimpleNamespace(
            rows=rows,
            q_row=torch.zeros(count - 1, dtype=torch.int64),
            positions=torch.arange(count - 1),
            tokens=tokens[:-1],
        ),
        None,
    )
    last = torch.tensor([count - 1])
    return SimpleNamespace(rows=rows, positions=last, tokens=tokens[-1:], max_seq_len=count + 5)


def test_a_text_that_repeats_itself_is_foreseen_to_go_on():
    algo = algorithm(5)
    draft = algo.draft(passed(algo, b"xyabcdabcdab"))
    assert bytes(draft.tokens[0].tolist()) == b"cdabc"
    assert draft.lengths.tolist() == [5]


def test_the_longer_match_wins_over_the_later_one():
    algo = algorithm(1)
    assert algo.draft(passed(algo, b"abcX.bcY.abc")).tokens.tolist() == [[ord("X")]]
    algo = algorithm(1, longest=2)
    assert algo.draft(passed(algo, b"abcX.bcY.abc")).tokens.tolist() == [[ord("Y")]]


def test_nothing_is_proposed_where_too_little_repeats():
    # Tokens that never came before have no occurrence that could be followed.
    few = SamplingParams(max_new_tokens=1)
    options = {"ngram.shortest": "4"}
    _, stats = served(few, spec_algo="ngram", options=options)
    assert stats["drafts"]["drafted"] == 0


def test_a_tree_of_more_branches_than_tokens_is_refused():
    with pytest.raises(WiringError, match="5 branches of 3 tokens"):
        served(LONG, spec_algo="ngram", spec_tokens=3, spec_topk=5)


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="shortest=9 is above longest=4"):
        served(LONG, spec_algo="ngram", options={"ngram.shortest": "9"})


def test_a_request_finds_nothing_of_the_one_that_had_its_row_before():
    config = {"model": "random:tiny", "dtype": "float64", "spec_algo": Ngram}
    with Engine(EngineConfig(**config, max_running_requests=1)) as engine:
        engine.generate(["abcdabcdabcd" * 3], LONG, raw=True)
        (after,) = engine.generate([[97, 98]], SamplingParams(max_new_tokens=2), raw=True)
    with Engine(EngineConfig(**config, max_running_requests=1)) as engine:
        (fresh,) = engine.generate([[97, 98]], SamplingParams(max_new_tokens=2), raw=True)
    assert (after.output_ids, after.drafted) == (fresh.output_ids, fresh.drafted)
