"""`warcore.testkit.checks`: the contract as the items of a plugin's own pytest."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest

import pytest
from testkit import fake_rules, hostile
from testkit.fake_rules import make

from warcore.errors import ConfigError
from warcore.testkit import checks
from warcore.testkit.runs import selection


@pytest.fixture
def items(monkeypatch):
    """`items(*checks, known={})`: those of a good backend, by name."""

    def of(*every, known=None, cls=hostile.Good, **facts):
        monkeypatch.setattr(selection, "checks_of", lambda kind: iter(every))
        return {str(item): item for item in checks(cls, known, **facts)}

    return of


def test_each_check_is_an_item_called_as_it(items):
    found = items(make(fake_rules.passes), make(fake_rules.absent))
    assert list(found) == ["backend.passes", "backend.absent"]
    found["backend.passes"]()


def test_a_failure_raises_with_the_whole_report(items):
    with pytest.raises(AssertionError, match=r"declared   decode: PRE_REPLAY\n") as error:
        items(make(fake_rules.refuted))["backend.refuted"]()
    assert "7 more of the kind" in str(error.value)


def test_what_does_not_apply_is_skipped_with_the_reason(items):
    with pytest.raises(unittest.SkipTest, match="not applicable: it has no graphs"):
        items(make(fake_rules.absent))["backend.absent"]()


def test_what_could_not_run_is_never_green(items):
    with pytest.raises(AssertionError, match="no detector"):
        items(make(fake_rules.blind))["backend.blind"]()


def test_an_item_run_alone_runs_what_it_needs(items):
    needs = make(fake_rules.passes, needs=("backend.refuted",))
    found = items(make(fake_rules.refuted), needs)
    with pytest.raises(AssertionError, match=r"backend\.refuted: failed"):
        found["backend.passes"]()


def test_a_known_failure_is_skipped_with_its_reason(items):
    found = items(make(fake_rules.refuted, level="SHOULD"), known={"backend.refuted": "later"})
    with pytest.raises(unittest.SkipTest, match="expected failure: later"):
        found["backend.refuted"]()


def test_a_known_failure_that_is_blocked_fails_as_without_the_entry(items):
    known = {"backend.it": "later"}
    it = make(fake_rules.refuted, name="it", level="SHOULD", needs=("backend.refuted",))
    with pytest.raises(AssertionError, match=r"backend\.it: blocked"):
        items(make(fake_rules.refuted), it, known=known)["backend.it"]()


def test_a_known_failure_that_passes_fails(items):
    found = items(make(fake_rules.passes, level="SHOULD"), known={"backend.passes": "later"})
    with pytest.raises(AssertionError, match="strike it out"):
        found["backend.passes"]()


@pytest.mark.parametrize(
    ("name", "why", "message"),
    [
        ("backend.pases", "x", "did you mean backend.passes?\nNext: 'backend.passes', or strike"),
        ("nonsense", "x", "'nonsense'\nNext: strike the entry out; warcore check --explain lists"),
        (
            "backend.passes",
            "x",
            "or not\nNext: mend what it finds: warcore check --explain backend",
        ),
        ("backend.refuted", "", 'without a reason\nNext: {"backend.refuted": "why it fails"}'),
    ],
)
def test_a_wrong_entry_of_known_failures_is_an_item_that_fails(items, name, why, message):
    found = items(
        make(fake_rules.passes), make(fake_rules.refuted, level="SHOULD"), known={name: why}
    )
    with pytest.raises(AssertionError, match=re.escape(message)):
        found[f"known_failures[{name}]"]()


def test_known_failures_without_reasons_are_refused_with_what_to_write(items):
    with pytest.raises(ConfigError, match=r'Next: known_failures=\{"KIND.CHECK": "why it fails"\}'):
        items(make(fake_rules.passes), known=["backend.passes"])


def test_a_newer_check_is_skipped(items):
    with pytest.raises(unittest.SkipTest, match="newer than the plugin's contract: failed"):
        items(make(fake_rules.refuted, since="0.9"))["backend.refuted"]()


def test_a_check_gets_the_options_that_were_asked_for(items):
    chosen = hostile.Good.Options()
    with pytest.raises(unittest.SkipTest, match=r"'host', '', True, NoOptions\(\)\)"):
        items(make(fake_rules.seen), thorough=True, options=chosen)["backend.seen"]()


def test_a_class_that_is_no_plugin_is_refused():
    with pytest.raises(ConfigError, match="is no plugin"):
        checks(int)


@pytest.mark.parametrize(
    ("facts", "message"),
    [({"device": "gpu"}, "no device is called 'gpu'"), ({"options": 5}, "5 are no options of")],
)
def test_what_no_check_could_run_with_is_refused_before_any_is_skipped(items, facts, message):
    with pytest.raises(ConfigError, match=message):
        items(make(fake_rules.passes), **facts)


PLUGINS_OWN_TEST = """
import pytest
from testkit import fake_rules, hostile
from testkit.fake_rules import make
from warcore.testkit import checks
from warcore.testkit.runs import selection
CHECKS = [make(fake_rules.passes), make(fake_rules.absent), make(fake_rules.acts)]
selection.checks_of = lambda kind: iter(CHECKS)

@pytest.mark.parametrize("check", checks(hostile.Crashing), ids=str)
def test_contract(check):
    check()
"""


def test_a_plugins_own_pytest_shows_each_check_and_survives_a_crash(tmp_path):
    (tmp_path / "test_contract.py").write_text(PLUGINS_OWN_TEST)
    program = [sys.executable, "-m", "pytest", "-v", "-W", "error", "-p", "no:randomly"]
    result = subprocess.run(
        [*program, "test_contract.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "test_contract[backend.passes] PASSED" in result.stdout
    assert "test_contract[backend.absent] SKIPPED" in result.stdout
    assert "it ended the process with SIGSEGV" in result.stdout
    assert "1 failed, 1 passed, 1 skipped" in result.stdout
    assert "warning" not in result.stdout
