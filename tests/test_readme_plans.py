"""The table of `warcore plan` in a plugin's README is what the command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAYS = re.compile(r"`warcore (plan [^`]+)` says:\n\n((?:    .*\n)+)")
SHOWN = {
    f"{readme.parent.name}: {command}": (command, table)
    for readme in sorted(ROOT.glob("plugins/*/*/README.md"))
    for command, table in SAYS.findall(readme.read_text(encoding="utf-8"))
}


def test_every_attention_backend_shows_its_own():
    there = {readme.parent.name for readme in ROOT.glob("plugins/backends/*/README.md")}
    shown = {name.partition(":")[0] for name in SHOWN}
    assert shown >= there


@pytest.mark.parametrize(("command", "table"), SHOWN.values(), ids=SHOWN)
def test_the_table_is_what_the_command_prints(command, table):
    if "--backend triton" in command and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "warcore", *command.split()],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    plan = done.stdout
    lines = plan[plan.index("STEP ") : plan.index("\n\n", plan.index("STEP "))].splitlines()
    rows = [line.rstrip() for line in lines if not line.startswith(" ")]
    assert [line.strip() for line in table.splitlines()] == rows
