"""Whole engines: what is decided and refused at wiring, and the contract."""

from __future__ import annotations

import pytest

from warcore import Engine, EngineConfig, FencePlan, SamplingParams, WiringError, testkit
from warcore_backend_deepseek_v4 import DeepseekV4, Options


def config(**given):
    chosen = {"model": "random:swa-tiny", "backend": "deepseek_v4", "dtype": "float32", **given}
    return EngineConfig(**chosen)


def test_it_decides_for_each_prefill():
    (votes,) = FencePlan.of(config(host="inline")).votes
    assert votes.snapshot


def test_it_serves_only_where_it_is_named_if_the_reference_can_too():
    assert FencePlan.of(config(backend=None)).engine["backend"] == "torch_native"


def test_a_model_without_windows_is_refused_with_who_can_serve_it():
    with pytest.raises(WiringError) as error:
        Engine(config(model="random:tiny"))
    assert "a model without sliding windows" in error.value.what
    assert "torch_native" in error.value.next


def test_every_reason_against_a_model_is_given_at_wiring():
    class Odd(DeepseekV4):
        @classmethod
        def why_not(cls, spec):
            return [*super().why_not(spec), "odd"]

    with pytest.raises(WiringError) as error:
        Engine(config(model="random:tiny", backend=Odd))
    assert error.value.what.splitlines()[1:] == [
        "  a model without sliding windows (a layer with one is what it is for)",
        "  odd",
    ]


@pytest.mark.parametrize("context", [40, 60, 64, 100])
def test_a_prefill_of_many_is_right_where_the_context_is_shorter_than_a_block(context):
    lens = [context - 5] + [20] * 14
    prompts = [[(7 * i + 13 * j) % 256 for j in range(n)] for i, n in enumerate(lens)]

    def answers(backend):
        small = {"host": "inline", "context_length": context, "max_running_requests": len(lens)}
        with Engine(config(backend=backend, dtype="float64", **small)) as engine:
            params = SamplingParams(max_new_tokens=3, ignore_eos=True)
            return [(o.output_ids, o.error) for o in engine.generate(prompts, params)]

    assert answers("deepseek_v4") == answers("torch_native")


@pytest.mark.slow
@pytest.mark.parametrize("check", testkit.checks(DeepseekV4), ids=str)
def test_contract(check):
    check()


SPARSE = testkit.checks(DeepseekV4, options=Options(sparse_above=4))
"""The kit's prefills are short: by default none of them is sparse."""


@pytest.mark.slow
@pytest.mark.parametrize("check", SPARSE, ids=str)
def test_contract_with_a_chunk_cache_above_4_tokens(check):
    check()
