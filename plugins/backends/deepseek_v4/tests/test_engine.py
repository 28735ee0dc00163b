"""Whole engines: what is decided and refused at wiring, and the contract."""

from __future__ import annotations

import pytest

from warcore import Engine, EngineConfig, FencePlan, WiringError, testkit
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
