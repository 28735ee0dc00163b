"""Whole engines: the text of the reference backend, and what is said of the kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import pytest
import torch

from warcore import Engine, EngineConfig, SamplingParams, WiringError, testkit
from warcore_backend_trtllm_mha import TrtllmMha
from warcore_backend_trtllm_mha.providers import PROVIDERS

WHY_NOT = PROVIDERS["triton"].missing(torch.device("cpu"))
interpreted = pytest.mark.skipif(bool(WHY_NOT), reason=f"cannot run kernels on {WHY_NOT}")

PROMPTS = [[1, 2, 3], list(range(5, 40)), [7] * 9]
WAYS = {
    "eager": {"graph_runner": "none"},
    "normal": {"graph_runner": "none", "loop": "normal"},
    "full": {"graph_runner": "full"},
    "breakable": {"graph_runner": "breakable"},
    "prefills": {"graph_runner": "full", "graph_prefill_buckets": (4, 16)},
    "chunks": {"graph_runner": "full", "prefill_chunk": 7, "page_size": 32},
    "threads": {"graph_runner": "full", "host": "threads"},
}


class Interpreted(TrtllmMha):
    """With the Triton kernels, whoever asks."""

    @classmethod
    def why_not(cls, spec):
        return [*super().why_not(spec), *PROVIDERS["triton"].why_not(spec)]

    def __init__(self, ctx):
        super().__init__(attrs.evolve(ctx, options=TrtllmMha.Options("triton")))


def answers(backend="trtllm_mha", model="random:tiny", tokens=8, **config):
    """(token ids of each prompt, how many steps were replayed)."""
    sizes = {"context_length": 64, "max_running_requests": 4}
    given = {"model": model, "dtype": "float32", "backend": backend, **sizes, **config}
    with Engine(EngineConfig(**given)) as engine:
        outputs = engine.generate(PROMPTS, SamplingParams(max_new_tokens=tokens))
        replays = 0 if given["graph_runner"] == "none" else engine.stats()["graphs"]["replays"]
        assert all(output.error is None for output in outputs)
        return [output.output_ids for output in outputs], replays


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["random:tiny", "random:swa-tiny"])
def test_the_text_is_that_of_the_reference(model, way):
    expected, _ = answers("torch_native", model, graph_runner="none")
    found, replays = answers(model=model, **WAYS[way])
    assert found == expected
    assert bool(replays) is (WAYS[way]["graph_runner"] != "none")


DRAFTED = {
    "chain": {"spec_algo": "ngram", "spec_tokens": 4},
    "tree": {"spec_algo": "ngram", "spec_tokens": 6, "spec_topk": 2},
    "model": {"spec_algo": "standalone", "spec_tokens": 3, "stagers": ("draft_extend",)},
}


@pytest.mark.parametrize("drafted", DRAFTED)
@pytest.mark.parametrize("runner", ["none", "full", "breakable"])
def test_drafts_change_nothing_of_the_text(drafted, runner):
    model = {"model": "random:swa-tiny", "dtype": "float64"}
    expected, _ = answers("torch_native", graph_runner="none", **model)
    assert answers(**DRAFTED[drafted], graph_runner=runner, **model)[0] == expected


@interpreted
@pytest.mark.parametrize("way", ["eager", "prefills", "breakable"])
def test_so_it_is_with_the_triton_kernels(way):
    expected, _ = answers("torch_native", "random:swa-tiny", 3, graph_runner="none")
    config = {**WAYS[way], "options": {"trtllm_mha.kernels": "triton"}, "graph_buckets": (4,)}
    if way == "eager":
        del config["graph_buckets"]
    assert answers(model="random:swa-tiny", tokens=3, **config)[0] == expected


@pytest.mark.parametrize("parts", [("trtllm_mha", "torch_native"), ("torch_native", "trtllm_mha")])
def test_it_shares_a_cache_with_the_reference(parts):
    expected, _ = answers("torch_native", graph_runner="none")
    both = dict(zip(("prefill_backend", "decode_backend"), parts, strict=True))
    assert answers(None, graph_runner="full", **both)[0] == expected


def test_named_kernels_that_cannot_serve_stop_the_wiring():
    with pytest.raises(WiringError, match="the flashinfer kernels cannot serve this"):
        answers(graph_runner="none", options={"trtllm_mha.kernels": "flashinfer"})


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "warcore", *arguments],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_listing_says_which_kernels_serve():
    code, listing, errors = command("list-plugins", "--load", "--only", "trtllm_mha")
    assert code == 0, errors
    assert "torch kernels; flashinfer: " in listing


def test_other_page_sizes_are_refused_with_a_backend_that_has_them():
    with pytest.raises(WiringError, match=r"a page size of 8 \(it has 16, 32, 64\)") as refusal:
        answers(graph_runner="none", page_size=8)
    assert "--backend torch_native" in refusal.value.next


def test_it_serves_only_where_it_is_named_if_the_reference_can_too():
    with Engine(EngineConfig(model="random:tiny", graph_runner="none")) as engine:
        assert engine.describe()["backend"] == "torch_native"


@pytest.mark.slow
@pytest.mark.parametrize("check", testkit.checks(TrtllmMha), ids=str)
def test_contract(check):
    check()


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("check", testkit.checks(Interpreted), ids=str)
def test_contract_with_the_triton_kernels(check):
    check()
