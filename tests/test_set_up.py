"""The commands of the workspace say what they need before they do anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import check_python
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("version", [(2, 7), (3, 9)])
def test_an_old_python_is_told_which_one_to_bring(version):
    said = check_python.why_not(version, "")
    assert f"python{version[0]}.{version[1]}" in said
    assert "Next: name another, as in make demo PYTHON=" in said


def test_a_python_without_its_venv_is_told_which_package_to_install():
    assert "apt install python3.12-venv" in check_python.why_not((3, 12), "ensurepip")


def test_a_whole_python_is_fine():
    assert check_python.why_not((3, 10), "") == ""


def test_make_alone_prints_help():
    said = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "test-all", "check", "bench"):
        assert f"make {target} " in said


def test_a_python_that_is_not_there_is_named(tmp_path):
    command = ["make", "-C", ROOT, "demo", f"done={tmp_path}/fresh", "PYTHON=python9.9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no python9.9 here. Next: name one" in done.stdout
