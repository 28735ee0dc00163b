"""What it means that a check has told nothing: a hang, a crash, or too little time."""

from __future__ import annotations

import json
import signal

import pytest

from warcore.testkit.environment import TIMEOUT_VARIABLE
from warcore.testkit.outcome import Outcome
from warcore.testkit.runs.aftermath import UNWRITTEN, ended

SECONDS = 8.0
LOOK = "Timeout (0:00:04)!\nThread 0x1 (most recent call first):\n"
CRASH = "Fatal Python error: Segmentation fault\n\n{whose} 0x1 (most recent call first):\n"
KIT = '  File "/kit/walk.py", line {} in cells_of\n'
PLUGIN = '  File "/its/home.py", line {} in forward\n'


@pytest.fixture
def after(tmp_path):
    """`after(STACKS, code, took)`: what comes of a check of a loaded plugin that left these."""
    task = {"folder": str(tmp_path), "seconds": SECONDS, "rule": "a rule", "record": {"file": None}}
    (tmp_path / "homes").write_text(json.dumps(["/its/home.py"]))

    def of(stacks, code=None, took=SECONDS, **facts):
        (tmp_path / "stacks").write_text(stacks)
        return ended(task, code, took, **{"died": False, **facts}).verdict

    return of


def stands(*numbers, kit=3):
    """Looks at a plugin that stood at these lines."""
    return "".join(LOOK + PLUGIN.format(number) + KIT.format(kit) for number in numbers)


def test_what_stands_at_one_line_of_the_plugin_all_the_time_hangs(after):
    verdict = after(stands(7, 7))
    assert (verdict.outcome, verdict.failure.mishap) == (Outcome.FAILED, "hung")
    assert verdict.failure.observed == "it did not end within 8 s"
    assert verdict.failure.where.startswith("/its/home.py:7")


@pytest.mark.parametrize(
    "stacks",
    [
        stands(7, 9),
        stands(7) + stands(7, kit=4),
        stands(7),
        stands(7) + LOOK + KIT.format(3),
        (LOOK + KIT.format(3)) * 2,
        "",
    ],
    ids=["elsewhere", "called from elsewhere", "seen once", "back in the kit", "never there", ""],
)
def test_what_moves_or_is_not_in_the_plugin_may_only_be_slow(after, stacks):
    verdict = after(stacks)
    assert verdict.outcome is Outcome.UNPROVEN
    assert verdict.why == f"it did not end within 8 s; it has more with {TIMEOUT_VARIABLE}=SECONDS"


def test_a_plugin_that_takes_too_long_to_load_may_only_be_slow(after, tmp_path):
    (tmp_path / "homes").unlink()
    verdict = after(stands(7, 9))
    assert verdict.outcome is Outcome.UNPROVEN
    assert verdict.why.startswith("while it was loaded, it did not end within 8 s; it has more")


def test_a_look_that_was_broken_off_by_the_end_changes_nothing(after):
    assert after(stands(7, 7) + LOOK).failure.mishap == "hung"


def test_a_signal_at_the_end_of_the_time_is_its_watchdog(after):
    verdict = after(stands(7, 9), -signal.SIGSEGV, SECONDS + 0.1)
    assert verdict.outcome is Outcome.UNPROVEN


def test_a_watchdog_that_dies_of_its_look_before_that_is_no_crash_of_the_plugin(after):
    stacks = stands(7) + CRASH.format(whose="Thread") + PLUGIN.format(9)
    assert after(stacks, -signal.SIGSEGV, SECONDS / 2 + 0.1).outcome is Outcome.UNPROVEN


@pytest.mark.parametrize("looked", ["", stands(9)])
def test_a_crash_is_told_with_the_line_at_which_the_plugin_crashed(after, looked):
    stacks = looked + CRASH.format(whose="Current thread") + PLUGIN.format(7)
    verdict = after(stacks, -signal.SIGSEGV, SECONDS / 2 + 0.1)
    assert verdict.failure.observed == "it ended the process with SIGSEGV"
    assert verdict.failure.where.startswith("/its/home.py:7")
    assert verdict.trace.startswith("Fatal Python error: Segmentation fault")


def test_what_could_not_be_written_down_is_no_verdict(after):
    assert after("", UNWRITTEN, 1.0).outcome is Outcome.UNPROVEN


def test_the_end_of_the_kits_process_is_the_plugins(after):
    assert "the kit's own process" in after("", None, 1.0, died=True).failure.observed
