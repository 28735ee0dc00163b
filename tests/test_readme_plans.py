"""The table of `warcore plan` in a plugin's README is what the command prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAYS = re.compile(r"`warcore (plan [^`]+)` says:\n\n((?:    .*\n)+)")
SHOWN = {
    f"{readme.parent.name}: {command}": (command, table)
    for readme in sorted(ROOT.glob("plugins/*/*/README.md"))
    for command, table in SAYS.findall(readme.read_text(encoding="utf-8"))
}


def test_some_readmes_show_a_plan():
    assert len(SHOWN) >= 2


@pytest.mark.parametrize(("command", "table"), SHOWN.values(), ids=SHOWN)
def test_the_table_is_what_the_command_prints(command, table):
    done = subprocess.run(
        [sys.executable, "-m", "warcore", *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    plan = done.stdout
    lines = plan[plan.index("STEP ") : plan.index("\n\n", plan.index("STEP "))].splitlines()
    rows = [line.rstrip() for line in lines if not line.startswith(" ")]
    assert [line.strip() for line in table.splitlines()] == rows
