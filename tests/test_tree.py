"""Each rule of the tree holds here, and is red where it is broken."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from tree_rules import RULES

ROOT = Path(__file__).resolve().parent.parent

SOUND = {
    "core/pyproject.toml": """
        [project]
        dependencies = ["attrs>=23.2", "importlib-metadata>=7"]
    """,
    "core/src/warcore/__init__.py": """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from warcore.contract import Word
            from warcore.errors import ModelError

        _HOME = {"ModelError": "errors", "Word": "contract"}
        __all__ = ["ModelError", "Word", "__version__"]
        __version__ = "0.1.0"
    """,
    "core/src/warcore/contract.py": '''
        class Word:
            """A word."""

            def say(self):
                """Say it."""
    ''',
    "core/src/warcore/errors.py": "class ModelError(Exception): 'Unusable.'",
    "core/src/warcore/hookspecs.py": "",
    "core/src/warcore/options.py": "",
    "core/src/warcore/registry.py": "from warcore.contract import Word",
    "core/src/warcore/cli/__init__.py": "def main(args): raise SystemExit(0)",
    "plugins/backends/mine/pyproject.toml": """
        [project]
        name = "mine"
        [project.entry-points."warcore.backends"]
        row-major = "mine:Mine"
    """,
    "plugins/backends/mine/src/mine/__init__.py": """
        from warcore import ModelError, Word

        raise ModelError("no", next="another model")
    """,
    "tests/test_mine.py": "def test_mine(): assert True",
}
"""A small workspace that breaks no rule."""

BROKEN = {
    # rule: (file, its text, what the violation says); "<" stands for the sound text of the file,
    # and "~" is left out, so that this file breaks no rule itself
    "names": ("core/src/warcore/registry.py", "is_row_major = False", "row_major"),
    "plugin-imports": (
        "plugins/backends/mine/src/mine/more.py",
        "from warcore.contract import Word",
        "Word from warcore.contract",
    ),
    "core-imports": ("core/src/warcore/registry.py", "def f():\n    import numpy", "numpy"),
    "torch-free": ("core/src/warcore/registry.py", "import torch", "listing loads torch"),
    "floors": (
        "core/src/warcore/contract.py",
        "def f():\n    from warcore.registry import x",
        "contract (floor 0) imports registry (floor 1)",
    ),
    "contents": (
        "core/src/warcore/__init__.py",
        "<__all__ = ['ModelError', 'Word', 'Other']",
        "Other",
    ),
    "docstrings": (
        "core/src/warcore/contract.py",
        "class Word:\n    'A word.'\n    def hide(self): ...",
        "Word.hide",
    ),
    "remedies": (
        "plugins/backends/mine/src/mine/more.py",
        "from warcore import ModelError\nraise ModelError('no', next=None)",
        "without next=",
    ),
    "leftovers": ("plugins/backends/mine/README.md", "TO~DO: the rest", "finish it"),
    "sleep": ("tests/test_mine.py", "import time as t\nt.sleep(1)", "sleeps"),
    "paths": ("Makefile", "demo:\n\t/ho~me/me/bin/python", "one machine"),
    "hosts": ("Makefile", "demo:\n\tpip install -i https://py~pi.org/simple", "registry host"),
    "size": ("docs/picture.svg", "x" * 1_000_001, "1,000,001 bytes"),
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name, text in SOUND.items():
        _write(tmp_path / name, dedent(text))
    _write(tmp_path / "core/src/torch.py", "")  # found before any real one
    return tmp_path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule):
    assert list(RULES[rule](ROOT)) == []


def test_the_kit_has_floors_of_its_own(workspace):
    detector = workspace / "core/src/warcore/testkit/detectors/guard.py"
    _write(detector, "def f():\n    from warcore.testkit.runs.check import x\n")
    (found,) = RULES["floors"](workspace)
    assert "guard.py:2: detectors (floor 1) imports runs (floor 4)" in found
    _write(detector, "from warcore.testkit.runs import x\n")
    (found,) = RULES["floors"](workspace)
    assert "guard.py:1: detectors (floor 1) imports runs (floor 4)" in found


def test_weights_of_a_plugin_may_be_larger_within_limits(workspace):
    head = workspace / "plugins/spec_algos/mine/src/mine/heads/small.safetensors"
    _write(head, "x" * 10_000_000)
    assert list(RULES["size"](workspace)) == []
    _write(head, "x" * 10_000_001)
    assert len(list(RULES["size"](workspace))) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_workspace_keeps_the_rule(rule, workspace):
    assert list(RULES[rule](workspace)) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_finds_what_breaks_it(rule, workspace):
    name, text, says = BROKEN[rule]
    _write(workspace / name, text.replace("~", "").replace("<", dedent(SOUND.get(name, ""))))
    found = list(RULES[rule](workspace))
    assert found
    assert says in found[0]
    assert found[0].startswith(name.split("/", maxsplit=1)[0])
