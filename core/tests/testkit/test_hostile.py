"""What a plugin does to streams, files and processes harms neither the kit nor the next check."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from testkit import fake_rules, hostile_more
from testkit.fake_rules import make

from warcore.records import PluginRecord
from warcore.testkit.outcome import Outcome
from warcore.testkit.runs import selection
from warcore.testkit.runs.isolation import Isolation
from warcore.testkit.runs.running import run_checks
from warcore.testkit.subject import Subject

ACTS, NEXT = make(fake_rules.acts), make(fake_rules.untouched)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file that the plugins know."""
    return tmp_path_factory.mktemp("hostile") / "file"


@pytest.fixture(scope="module")
def isolation(file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARCORE_TEST_FILE", str(file))
        with Isolation() as shared:
            yield shared


@pytest.fixture
def act(monkeypatch, isolation):
    """`act(cls)`: what comes of letting it act; the next check passes."""

    def acted(cls, isolation=isolation):
        monkeypatch.setattr(selection, "checks_of", lambda kind: iter((ACTS, NEXT)))
        subject = Subject(PluginRecord.of_class("backend", cls), cls)
        first, then = run_checks(subject, isolation=isolation).results
        assert (then.outcome, then.why, then.failure) == (Outcome.PASSED, "", None)
        return first

    return acted


@pytest.mark.parametrize(
    "cls",
    [
        hostile_more.Mute,
        hostile_more.Blunt,
        hostile_more.Endless,
        hostile_more.Multiplying,
        hostile_more.Greedy,
    ],
    ids=lambda cls: cls.__name__,
)
def test_what_breaks_no_rule_is_no_failure(act, cls):
    assert act(cls).outcome is Outcome.PASSED


def test_a_plugin_that_deletes_its_folder_does_not_take_the_kits(act, monkeypatch, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.setenv("WARCORE_TEST_FOLDER", str(folder))
    monkeypatch.chdir(folder)
    with Isolation() as isolation:
        assert act(hostile_more.Homeless, isolation).outcome is Outcome.PASSED
    os.chdir(tmp_path)


def test_a_plugin_that_asks_for_more_memory_than_there_is_fails_with_its_line(act):
    result = act(hostile_more.Starved)
    assert result.outcome is Outcome.FAILED
    assert result.failure.where.endswith("torch.empty(1 << 50, dtype=torch.uint8)")


def test_of_what_is_printed_without_end_the_end_is_kept(act):
    result = act(hostile_more.Chatty)
    assert result.outcome is Outcome.PASSED
    assert result.output.endswith("the end\n")
    assert len(result.output) <= 4000


def test_a_plugin_that_replaces_the_kits_tools_gets_no_verdict_that_is_green(act):
    assert act(hostile_more.Replacing).outcome is not Outcome.PASSED


@pytest.mark.skipif(sys.platform != "linux", reason="it finds the folder in /proc")
def test_an_outcome_that_cannot_be_written_down_is_no_failure_and_no_pass(act):
    result = act(hostile_more.Sweeping)
    assert result.outcome is Outcome.UNPROVEN
    assert result.why.startswith("what came of it could not be written down")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who an orphan's parent was")
def test_a_process_that_a_plugin_leaves_behind_ends_with_its_check(act, file):
    assert act(hostile_more.Leaving).outcome is Outcome.PASSED
    assert not Path("/proc", file.read_text()).exists()
