"""An installed distribution with the toy plugins, and commands run with nothing else."""

from __future__ import annotations

import importlib
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from warcore.cli import main
from warcore.registry import ALLOWLIST

SOURCE = Path(__file__).resolve().parent.parent / "toys.py"
MODULE = "toys_of_generate"
PLUGINS = {"model": {"toy": f"{MODULE}:Toy"}, "backend": {"toy-rows": f"{MODULE}:RowMajor"}}


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def toy_site(site, monkeypatch):
    """The toys as a distribution on the path of this process, the only plugins that are on."""
    site.add("toys", PLUGINS, **{MODULE: SOURCE.read_text()})
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv(ALLOWLIST, "toy,toy-rows")
    return site


@pytest.fixture
def graphs(toy_site, monkeypatch):
    """Install the toy graph runner too, which an engine then chooses by itself."""
    toy_site.add("toy-graphs", {"graph_runner": {"toy-graphs": f"{MODULE}:Replaying"}})
    monkeypatch.setenv(ALLOWLIST, "toy,toy-rows,toy-graphs")


@pytest.fixture
def drafts(graphs, toy_site, monkeypatch):
    """Install the toy algorithm too."""
    toy_site.add("toy-drafts", {"spec_algo": {"toy-drafts": f"{MODULE}:Repeating"}})
    monkeypatch.setenv(ALLOWLIST, "toy,toy-rows,toy-graphs,toy-drafts")


@pytest.fixture
def toys(toy_site):
    """The module of the toy plugins, as the engine imports it."""
    return importlib.import_module(MODULE)


@pytest.fixture
def command(toy_site, capsys):
    """`command(NAME)`: `warcore NAME ARGS` with the toy model, in this process."""

    def named(name):
        def run(*args, model="toy"):
            code = main([name, "--model", model, "--dtype", "float64", *args])
            return Result(code, *capsys.readouterr())

        return run

    return named


@pytest.fixture
def generate(command):
    """`warcore generate ARGS` with the toy model, in this process."""
    return command("generate")


@pytest.fixture
def press(toys, monkeypatch):
    """Let the step that reaches `length` tokens of its first request press Ctrl-C."""

    def after(length, times=1):
        forward = toys.ToyModel.forward

        def pressing(self, batch, *args):
            if batch.seq_lens[0] == length:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return forward(self, batch, *args)

        monkeypatch.setattr(toys.ToyModel, "forward", pressing)

    return after
