"""Each wrong graph runner is found by its check; the order it is held to is the fence's own."""

from __future__ import annotations

import attrs
import pytest
from parts import TABLES
from toys import Replaying
from wrong_plugins.catalogue import entries, under_check

from warcore import ForwardMode, PluginRecord, SharedReadEnds
from warcore.testkit.outcome import NotApplicable, Refuted
from warcore.testkit.rules.graph_runner_events import ORDERS
from warcore.testkit.runs.check import checks_of
from warcore.testkit.subject import Subject

CHECKS = {check.name: check for check in checks_of("graph_runner") if check.kind == "graph_runner"}
ENTRIES = [each for each in entries() if each.path.parent.name == "graph_runners"]
WRONG = [each for each in ENTRIES if not each.is_right]
RIGHT = [each for each in ENTRIES if each.is_right]


def refuted(check, subject):
    with pytest.raises(Refuted) as raised:
        CHECKS[check].run(subject)
    return raised.value.failure


def subject_of(cls):
    return Subject(PluginRecord.of_class("graph_runner", cls), cls)


def before(check):
    """What has to be passed before `check` is run."""
    found = set()
    for need in CHECKS[check].needs:
        found |= {need} | before(need)
    return found


@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_a_wrong_runner_is_found_by_the_detector_that_it_names(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        failure = refuted(entry.breaks, subject)
        assert set(failure.seen_by) >= set(entry.detectors)
        again = refuted(entry.breaks, attrs.evolve(subject, cells=failure.cell))
    assert again.cell == failure.cell


@pytest.mark.slow
@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_no_other_check_is_red(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        for name, check in CHECKS.items():
            if name != entry.breaks and entry.breaks not in before(name):
                check.run(subject)


@pytest.mark.slow
@pytest.mark.parametrize("entry", RIGHT, ids=str)
@pytest.mark.parametrize("check", CHECKS)
def test_a_right_runner_raises_no_alarm(entry, check, tmp_path):
    with under_check(entry, tmp_path) as subject:
        CHECKS[check].run(subject)


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "graph_runner.in_an_engine"])
def test_the_smallest_runner_passes(check):
    CHECKS[check].run(subject_of(Replaying))


@pytest.mark.parametrize(
    "row",
    [row for row in TABLES["resolve"] if row["path"] == "graph"],
    ids=lambda row: row["expect"],
)
def test_the_order_that_runners_are_held_to_is_the_table_of_the_fence(row):
    owed = ORDERS[SharedReadEnds[row["declared"]], row["marker"]]
    assert list(owed) == row["order"]


class OnlyPrefill(Replaying):
    modes = frozenset({ForwardMode.EXTEND})


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "graph_runner.in_an_engine"])
def test_a_runner_of_other_modes_is_not_judged(check):
    with pytest.raises(NotApplicable, match="captures none of"):
        CHECKS[check].run(subject_of(OnlyPrefill))


class OnlyVerify(Replaying):
    modes = frozenset({ForwardMode.TARGET_VERIFY})


def test_a_runner_that_no_engine_replays_is_not_judged_in_one():
    with pytest.raises(NotApplicable, match="replays no step of an engine"):
        CHECKS["graph_runner.in_an_engine"].run(subject_of(OnlyVerify))


@pytest.mark.parametrize("moved", ["input", "backend"])
def test_a_right_runner_refuses_memory_that_has_moved(moved, monkeypatch):
    """It is an error, and not by luck the right output."""
    from warcore.testkit.stands.stand import Stand

    errors, run = [], Stand.run

    def noted(stand, *args, **more):
        try:
            return run(stand, *args, **more)
        except Exception as error:
            errors.append(error)
            raise

    monkeypatch.setattr(Stand, "run", noted)
    subject = attrs.evolve(subject_of(Replaying), cells=f"decode-{moved}")
    CHECKS["graph_runner.addresses"].run(subject)
    (error,) = errors
    assert "moved since" in str(error) or "other memory since its capture" in str(error)
