"""Packages that were written for this and for earlier minors run unchanged."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wrong_plugins.spec_algos.right import Right

from warcore import Engine, EngineConfig, SamplingParams
from warcore.records import KINDS

AUTHORS = Path(__file__).resolve().parent / "authors"
PACKAGES = sorted(path.parent for path in AUTHORS.glob("*/*/pyproject.toml"))
PROMPTS = ["a", "bcd" * 9]


def name(package):
    return str(package.relative_to(AUTHORS))


@pytest.fixture
def sample(package, monkeypatch):
    """The class of a package's plugin, imported from its sources."""
    monkeypatch.syspath_prepend(package / "src")
    (module,) = (path.name for path in (package / "src").iterdir() if path.name.isidentifier())
    yield importlib.import_module(module).Sample
    for each in [key for key in sys.modules if key.partition(".")[0] == module]:
        del sys.modules[each]


def tokens(**parts):
    """The answers of an engine with these parts, and its stats."""
    usual = {"model": "random:tiny", "backend": "torch_native", "graph_runner": "none"}
    config = EngineConfig(
        **{**usual, **parts},
        dtype="float64",
        device="host",
        host="seeded:1",
    )
    with Engine(config) as engine:
        answers = engine.generate(PROMPTS, SamplingParams(max_new_tokens=8), raw=True)
        return [answer.output_ids for answer in answers], engine.stats()


def parts_and_reference(kind, sample):
    """What an engine with the sample is made of, and one that must give the same tokens."""
    if kind == "stager":
        return {"spec_algo": Right, "stagers": (sample,)}, {}
    if kind == "model":
        return {"model": sample}, {"model": sample, "loop": "normal"}
    return {kind: sample}, {}


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_sample_of_each_minor_gives_the_tokens_of_the_reference(package, sample):
    parts, reference = parts_and_reference(package.name, sample)
    given, stats = tokens(**parts)
    assert given == tokens(**reference)[0]
    replays = stats["graphs"] and stats["graphs"]["replays"]
    assert bool(replays) is (package.name == "graph_runner")
    prefills = {each["reason"] for each in stats["fences"] if each["mode"] == "extend"}
    # Without the stager each prefill would be coarse, for its draft reads later.
    assert prefills == {"fine"}


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_sample_of_each_minor_passes_what_its_author_would_run_first(package):
    own_tests(package, "-k", "not contract or loads or votes")


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_sample_of_each_minor_passes_all_of_its_own_tests(package):
    own_tests(package)


def own_tests(package, *arguments):
    """Run a package's tests where they lie, and leave nothing there."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_running_minor_has_a_sample_of_each_kind():
    from warcore import __version__

    minor = ".".join(__version__.split(".")[:2])
    assert {p.name for p in PACKAGES if p.parent.name == minor} == set(KINDS)
