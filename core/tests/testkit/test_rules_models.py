"""Each wrong model turns exactly its check red; the models of this repository none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from warcore import PluginRecord
from warcore.registry import find_plugins, load
from warcore.testkit.models.references import LARGEST
from warcore.testkit.outcome import NotApplicable, Refuted, Unproven
from warcore.testkit.runs.check import checks_of
from warcore.testkit.subject import Subject

FOLDER = Path(__file__).parents[1] / "wrong_plugins/models"
WRONG = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "right")


def given(name):
    """A wrong model's module, and its family under check."""
    module = import_module(f"wrong_plugins.models.{name}")
    return module, Subject(PluginRecord.of_class("model", module.Plugin), module.Plugin)


def red(subject, outcomes=None):
    """The checks of models that it fails, with their failures."""
    failures = {}
    for check in checks_of("model"):
        if check.kind != "model" or any(need in failures for need in check.needs):
            continue
        try:
            check.run(subject)
        except Refuted as refuted:
            failures[check.name] = refuted.failure
        except (NotApplicable, Unproven) as end:
            if outcomes is None:
                raise
            outcomes[check.name] = end
    return failures


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_turns_exactly_its_check_red(name):
    module, subject = given(name)
    expected = set() if module.BREAKS == "model.nothing" else {module.BREAKS}
    assert set(red(subject)) == expected


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("imports_torch", "import torch"),
        ("asks_the_network", 'socket.getaddrinfo("127.0.0.1", 80)'),
        ("lists_its_rows", "assert batch.rows.tolist()"),
    ],
)
def test_a_failure_names_the_line_at_fault(name, line):
    module, subject = given(name)
    where = red(subject)[module.BREAKS].where
    assert where.endswith(f": {line}")
    assert f"{name}.py:" in where


def test_a_model_that_raises_is_told_with_its_line(monkeypatch):
    module, subject = given("keeps_the_contract")
    monkeypatch.setattr(module.Plugin.model, "select", lambda self, x, batch: x[batch.nothing])
    (failure,) = red(subject).values()
    assert "AttributeError" in failure.observed
    assert "right.py:" in failure.where


def test_a_model_without_positions_may_be_right(monkeypatch):
    module, subject = given("keeps_the_contract")
    monkeypatch.setattr(module.Plugin.model, "positions", lambda self, batch: batch.positions * 0)
    assert red(subject) == {}


def test_positions_that_begin_anew_are_found(monkeypatch):
    module, subject = given("keeps_the_contract")
    monkeypatch.setattr(module.Plugin.model, "positions", lambda self, batch: batch.positions % 24)
    (failure,) = red(subject).values()
    assert "at positions 7 and 31" in failure.observed


def test_a_family_without_a_model_of_its_own_says_why():
    (record,) = [each for each in find_plugins() if each.name == "gguf"] or [None]
    if record is None:
        pytest.skip("gguf is not installed")
    outcomes = {}
    assert red(Subject(record, load(record)), outcomes) == {}
    assert "gguf needs a file" in str(outcomes["model.rows_do_not_touch"])


def test_a_large_model_is_loaded_by_a_thorough_run_only(monkeypatch):
    _, subject = given("keeps_the_contract")
    monkeypatch.setattr("warcore.testkit.models.references.LARGEST", 1000)
    assert LARGEST > 1000
    outcomes = {}
    red(subject, outcomes)
    assert isinstance(outcomes["model.rows_do_not_touch"], Unproven)


@pytest.mark.parametrize(
    "name", ["random", pytest.param("smollm2", marks=[pytest.mark.model, pytest.mark.slow])]
)
def test_a_family_of_this_repository_keeps_the_contract(name):
    records = [each for each in find_plugins() if each.name == name]
    if not records:
        pytest.skip(f"{name} is not installed")
    assert red(Subject(records[0], load(records[0]))) == {}
