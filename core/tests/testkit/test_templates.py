"""The package that `warcore new` writes keeps the contract from the first minute."""

from __future__ import annotations

import importlib
import sys

import pytest

from warcore import PluginRecord
from warcore.cli import main
from warcore.testkit.outcome import NotApplicable
from warcore.testkit.runs.check import checks_of
from warcore.testkit.subject import Subject

CHECKS = [check for check in checks_of("spec_algo") if check.kind == "spec_algo"]
CLASS = "FollowsOn"


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "p"
    assert main(["new", "spec_algo", "follows-on", "--dir", str(folder)]) == 0
    sys.path.insert(0, str(folder / "src"))
    try:
        cls = getattr(importlib.import_module("warcore_spec_follows_on"), CLASS)
        yield Subject(PluginRecord.of_class("spec_algo", cls), cls)
    finally:
        sys.path.remove(str(folder / "src"))


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_new_algorithm_keeps_each_rule(subject, check):
    try:
        check.run(subject)
    except NotApplicable:
        # Its drafts are not drawn from anything.
        assert check.name == "spec_algo.distribution"
