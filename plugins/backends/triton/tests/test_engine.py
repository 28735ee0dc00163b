"""Whole engines: the text of the reference backend, where it serves, and the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from warcore import Engine, EngineConfig, SamplingParams, testkit
from warcore_backend_triton import Triton
from warcore_backend_triton.interpreter import why_not

WHY_NOT = why_not(torch.device("cpu"))
interpreted = pytest.mark.skipif(bool(WHY_NOT), reason=f"cannot run kernels on {WHY_NOT}")

PROMPTS = [[1, 2, 3], list(range(5, 40)), [7] * 9]
WAYS = {
    "eager": {"graph_runner": "none"},
    "normal": {"graph_runner": "none", "loop": "normal"},
    "full": {"graph_runner": "full"},
    "breakable": {"graph_runner": "breakable"},
    "prefills": {"graph_runner": "full", "graph_prefill_buckets": (4, 16)},
    "chunks": {"graph_runner": "full", "prefill_chunk": 7, "page_size": 1},
    "threads": {"graph_runner": "full", "host": "threads"},
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def answers(backend, model="random:tiny", **config):
    """(token ids of each prompt, how many steps were replayed)."""
    sizes = {"context_length": 64, "max_running_requests": 4}
    given = {"model": model, "dtype": "float32", "backend": backend, **sizes, **config}
    with Engine(EngineConfig(**given)) as engine:
        outputs = engine.generate(PROMPTS, SamplingParams(max_new_tokens=8))
        replays = 0 if given["graph_runner"] == "none" else engine.stats()["graphs"]["replays"]
        assert all(output.error is None for output in outputs)
        return [output.output_ids for output in outputs], replays


@interpreted
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_that_of_the_reference(way):
    expected, _ = answers("torch_native", graph_runner="none")
    found, replays = answers("triton", **WAYS[way])
    assert found == expected
    assert bool(replays) is (WAYS[way]["graph_runner"] != "none")


@interpreted
def test_layers_with_windows_give_the_text_of_the_reference():
    model = {"model": "random:swa-tiny"}
    expected, _ = answers("torch_native", graph_runner="none", **model)
    assert answers("triton", graph_runner="full", **model)[0] == expected


def command(*arguments, interpreter):
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpreter else "0"}
    done = subprocess.run(
        [sys.executable, "-m", "warcore", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("interpreter", [False, True])
def test_it_serves_only_where_it_is_named_if_the_reference_can_too(interpreter):
    code, plan, errors = command("plan", "--model", "random:tiny", interpreter=interpreter)
    assert code == 0, errors
    assert "with torch_native on cpu" in plan


def test_named_without_a_way_to_run_it_says_what_is_missing():
    code, _, errors = command(
        "plan", "--model", "random:tiny", "--backend", "triton", interpreter=False
    )
    assert code != 0
    missing = "TRITON_INTERPRET=1" if find_spec("triton") else "pip install triton"
    assert missing in errors


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("check", testkit.checks(Triton), ids=str)
def test_contract(check):
    check()
