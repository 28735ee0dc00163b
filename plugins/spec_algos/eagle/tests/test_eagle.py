"""Whole engines with eagle: the text of no speculation, fences, and what is refused."""

from __future__ import annotations

import attrs
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from warcore import Engine, EngineConfig, SamplingParams, Stager, WiringError
from warcore.errors import ConfigError, ModelError
from warcore_backend_torch_native import TorchNative
from warcore_model_llama.families import Random
from warcore_spec_eagle import heads
from warcore_spec_eagle.weights import HeadSizes, read_head, untrained, write_head

PROMPTS = ["one two three one two three one two", "aaaaaaaa", "x", "no word comes twice in here"]
LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)
DRAWN = SamplingParams(max_new_tokens=30, ignore_eos=True, temperature=0.8, seed=5)
TINY = HeadSizes(
    hidden=32, target_vocab=258, draft_vocab=64, q_heads=2, kv_heads=1, head_dim=16, ffn=48
)


def served(params, **config):
    tiny = {"model": "random:tiny", "dtype": "float64", "backend": "torch_native"}
    with Engine(EngineConfig(**{**tiny, **config})) as engine:
        outputs = engine.generate(PROMPTS, params, raw=True)
        return [output.output_ids for output in outputs], engine.stats()


def eagle(**config):
    return {"spec_algo": "eagle", "options": {"eagle.head": "random"}, **config}


def fences(stats):
    return {(fence["mode"], fence["reason"]) for fence in stats["fences"]}


@pytest.mark.parametrize("params", [LONG, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"spec_tokens": 1, "stagers": ["draft_extend"]},
        {"spec_tokens": 7, "prefill_chunk": 3, "kv_pages": 14, "max_running_requests": 3},
        {"mixed": True, "prefill_chunk": 7},
        {"graph_runner": "full", "graph_buckets": (1, 4), "stagers": ["draft_extend"]},
        {"spec_tokens": 5, "spec_topk": 2, "stagers": ["draft_extend"]},
        {"spec_tokens": 6, "spec_topk": 3, "mixed": True, "prefill_chunk": 7},
        {"spec_tokens": 3, "spec_topk": 3, "graph_runner": "breakable"},
    ],
    ids=str,
)
def test_the_text_is_that_of_no_speculation(config, params):
    expected, _ = served(params)
    got, stats = served(params, **eagle(**config))
    assert got == expected
    assert stats["drafts"]["drafted"] > 0


def test_a_prefill_is_coarse_without_a_stager_and_fine_with_one():
    _, alone = served(LONG, **eagle())
    assert fences(alone) == {("extend", "no_stager"), ("draft_extend", "fine")}
    _, staged = served(LONG, **eagle(stagers=["draft_extend"]))
    assert fences(staged) == {("extend", "fine"), ("draft_extend", "fine")}


def test_a_draft_extend_settles_a_decode_step_whose_drafts_are_replayed():
    _, stats = served(LONG, **eagle(graph_runner="full", stagers=["draft_extend"]))
    assert stats["graphs"]["replays"] > 0
    assert fences(stats) == {("extend", "fine"), ("draft_extend", "fine")}


# ---- heads from files ----------------------------------------------------------------------------


def test_a_head_from_a_file_drafts(tmp_path):
    head = tmp_path / "head.safetensors"
    write_head(head, untrained(TINY, seed=1), {"target": "random:tiny"})
    expected, _ = served(LONG)
    got, stats = served(LONG, spec_algo="eagle", options={"eagle.head": str(head)})
    assert got == expected
    assert stats["drafts"]["drafted"] > 0


def test_a_head_of_another_model_is_refused_with_all_reasons(tmp_path):
    head = tmp_path / "head.safetensors"
    write_head(head, untrained(attrs.evolve(TINY, hidden=64, target_vocab=300), seed=1), {})
    with pytest.raises(WiringError) as raised:
        served(LONG, spec_algo="eagle", options={"eagle.head": str(head)})
    assert "hidden states of 64, and random:tiny has 32" in raised.value.what
    assert "a vocabulary of 300, and random:tiny has 258" in raised.value.what
    assert "python -m warcore_spec_eagle.train --model random:tiny" in str(raised.value)


def test_a_target_that_no_head_ships_for_is_told_how_to_train_one():
    with pytest.raises(WiringError, match="no head ships for random:tiny") as raised:
        served(LONG, spec_algo="eagle")
    assert "python -m warcore_spec_eagle.train --model random:tiny" in str(raised.value)


def test_a_head_that_ships_is_found_by_the_sizes_of_its_target(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "SHIPPED", tmp_path)
    others = attrs.evolve(TINY, hidden=64)
    write_head(tmp_path / "another.safetensors", untrained(others, seed=1), {})
    with pytest.raises(WiringError, match="another: it was trained for hidden states of 64"):
        served(LONG, spec_algo="eagle")
    write_head(tmp_path / "tiny.safetensors", untrained(TINY, seed=1), {})
    _, stats = served(LONG, spec_algo="eagle")
    assert stats["drafts"]["drafted"] > 0


def test_the_heads_that_ship_are_whole_and_small():
    shipped = list(heads.SHIPPED.glob("*.safetensors"))
    assert [file.stem for file in shipped] == ["smollm2-135m"]
    for file in shipped:
        assert file.stat().st_size <= 10_000_000
        assert read_head(file).sizes.target_vocab == 49152


def test_rows_of_a_target_that_shows_none_are_refused(tmp_path, monkeypatch):
    head = tmp_path / "head.safetensors"
    write_head(head, untrained(TINY, seed=1), {})
    load = Random.load

    def hiding(ref, ctx):
        model = load(ref, ctx)
        model.embedding = model.unembedding = None
        return model

    monkeypatch.setattr(Random, "load", hiding)
    with pytest.raises(WiringError, match="shows none") as raised:
        served(LONG, spec_algo="eagle", options={"eagle.head": str(head)})
    assert raised.value.what.count("shows none") == 2


def test_more_alternatives_than_the_head_knows_tokens_are_refused(tmp_path):
    head = tmp_path / "head.safetensors"
    write_head(head, untrained(attrs.evolve(TINY, draft_vocab=4), seed=1), {})
    tree = {"spec_tokens": 6, "spec_topk": 5}
    with pytest.raises(WiringError, match="5 alternatives of a head that knows 4 tok") as raised:
        served(LONG, spec_algo="eagle", options={"eagle.head": str(head)}, **tree)
    assert raised.value.next == "--spec-topk 4 or less"


def _without(weights, name):
    del weights.tensors[name]


def _of_another_shape(weights, name):
    weights.tensors[name] = weights.tensors[name][1:].contiguous()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda weights: _without(weights, "join"), "join is missing"),
        (lambda weights: _of_another_shape(weights, "qkv"), "qkv is"),
        (lambda weights: weights.tensors.update(extra=torch.zeros(1)), "extra is not known"),
        (lambda weights: weights.to_target.fill_(258), "tokens 258 to 258 of 258"),
    ],
    ids=["missing", "shape", "extra", "tokens"],
)
def test_a_damaged_head_is_refused_by_the_name_of_what_is_wrong(tmp_path, damage, match):
    weights, head = untrained(TINY, seed=1), tmp_path / "head.safetensors"
    damage(weights)
    write_head(head, weights, {})
    with pytest.raises(ModelError, match=match) as raised:
        read_head(head)
    assert str(head) in raised.value.what


@pytest.mark.parametrize(
    ("sizes", "match"),
    [({"draft_vocab": 0}, "draft_vocab is 0"), ({"head_dim": 3}, "head_dim is 3, an odd number")],
    ids=str,
)
def test_sizes_that_no_head_can_have_are_refused(tmp_path, sizes, match):
    head = tmp_path / "head.safetensors"
    write_head(head, untrained(attrs.evolve(TINY, **sizes), seed=1), {})
    with pytest.raises(ModelError, match=match):
        read_head(head)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("join", torch.Tensor.int, "join is of torch.int32, and not of a float type"),
        ("up", lambda up: up.fill_(torch.nan), "up has values that are no finite numbers"),
        ("to_target", torch.Tensor.float, "its map of tokens is of torch.float32"),
    ],
    ids=["matrix", "nan", "map"],
)
def test_a_head_of_other_element_types_or_of_no_numbers_is_refused(tmp_path, name, change, match):
    head = tmp_path / "head.safetensors"
    write_head(head, untrained(TINY, seed=1), {})
    with safe_open(head, "pt") as opened:
        facts = opened.metadata()
        tensors = {key: opened.get_tensor(key).clone() for key in opened.keys()}  # noqa: SIM118
    save_file({**tensors, name: change(tensors[name])}, head, facts)
    with pytest.raises(ModelError, match=match):
        read_head(head)


def test_what_is_no_head_at_all_is_refused(tmp_path):
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"no head")
    for file, match in (
        (other, "other"),
        (tmp_path / "gone", "no such file"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(ModelError, match=match) as raised:
            served(LONG, spec_algo="eagle", options={"eagle.head": str(file)})
        assert raised.value.next


# ---- what does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({"spec_tokens": 2, "spec_topk": 3}, WiringError, "3 alternatives of 2 tokens"),
        ({"spec_tokens": 300}, ConfigError, "300 drafted tokens"),
        ({"spec_tokens": 60, "context_length": 250}, ConfigError, "60 drafted tokens"),
    ],
    ids=str,
)
def test_more_tokens_than_fit_are_refused(config, error, match):
    with pytest.raises(error, match=match) as raised:
        served(LONG, **eagle(**config))
    assert raised.value.next


class NoTrees(TorchNative):
    """Verifies chains alone."""

    @classmethod
    def why_not(cls, spec):
        reasons = super().why_not(spec)
        return [*reasons, "it has no masks for trees"] if spec.tree else reasons


class InPages(TorchNative):
    """Keeps keys of which no token can be moved alone."""

    @classmethod
    def kv_cache(cls, spec):
        memories = super().kv_cache(spec)
        k = memories["k"]
        turned = (k.shape[1], spec.page_size, *k.shape[2:])
        return {**memories, "k": attrs.evolve(k, shape=turned)}


@pytest.mark.parametrize(
    ("backend", "match"),
    [(NoTrees, "it has no masks for trees"), (InPages, "no token can be moved alone")],
)
def test_a_tree_that_the_backend_cannot_verify_is_refused(backend, match):
    with pytest.raises(WiringError, match=match) as raised:
        served(LONG, **eagle(spec_tokens=5, spec_topk=2, backend=backend))
    assert raised.value.next


def test_chains_are_verified_by_a_backend_without_trees():
    expected, _ = served(LONG)
    got, _ = served(LONG, **eagle(backend=NoTrees))
    assert got == expected


class Picky(Stager):
    """Stages for algorithms of its own alone."""

    @classmethod
    def why_not(cls, algorithm):
        return [f"{algorithm.__name__} keeps {kept}" for kept in ("features", "a relay")]

    def stage(self, batch):
        raise AssertionError("it is refused before it stages")


def test_a_stager_that_does_not_fit_is_refused_with_all_reasons():
    with pytest.raises(WiringError) as raised:
        served(LONG, **eagle(stagers=[Picky]))
    assert "Eagle keeps features" in raised.value.what
    assert "Eagle keeps a relay" in raised.value.what
    assert raised.value.next
