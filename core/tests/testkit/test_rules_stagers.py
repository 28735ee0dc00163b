"""Each wrong stager is found by its check, and the right one raises no alarm."""

from __future__ import annotations

import attrs
import pytest
from parts import fences
from wrong_plugins.catalogue import entries, under_check

from warcore import PluginRecord, Stager
from warcore.testkit.engines.laterreaders import CASES, staged_workload
from warcore.testkit.outcome import NotApplicable, Refuted
from warcore.testkit.runs.check import checks_of
from warcore.testkit.stands.walk import quiet_torch
from warcore.testkit.subject import Subject

CHECKS = {check.name: check for check in checks_of("stager") if check.kind == "stager"}
ENTRIES = [each for each in entries() if each.path.parent.name == "stagers"]
WRONG = [each for each in ENTRIES if not each.is_right]
(RIGHT,) = [each for each in ENTRIES if each.is_right]


def refuted(check, subject):
    with pytest.raises(Refuted) as raised:
        CHECKS[check].run(subject)
    return raised.value.failure


def before(check):
    """What has to be passed before `check` is run."""
    found = set()
    for need in (*CHECKS[check].needs, *CHECKS[check].after):
        found |= {need} | before(need)
    return found


@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_a_wrong_stager_is_found_by_the_detector_that_it_names(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        failure = refuted(entry.breaks, subject)
        assert set(failure.seen_by) >= set(entry.detectors)
        assert failure.cell in subject.offered


@pytest.mark.slow
@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_a_failure_repeats_in_its_cell_alone(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        cell = refuted(entry.breaks, subject).cell
        assert refuted(entry.breaks, attrs.evolve(subject, cells=cell)).cell == cell


@pytest.mark.slow
@pytest.mark.parametrize("entry", WRONG, ids=str)
def test_no_other_check_is_red(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        for name, check in CHECKS.items():
            if name != entry.breaks and entry.breaks not in before(name):
                check.run(subject)


@pytest.mark.parametrize("check", CHECKS)
def test_the_right_stager_raises_no_alarm(check, tmp_path):
    with under_check(RIGHT, tmp_path) as subject:
        CHECKS[check].run(subject)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_right_stager_makes_fences_fine_where_it_can(case, tmp_path):
    """What the checks stand on: here a True is published, and there it must not be."""
    with under_check(RIGHT, tmp_path) as subject:
        load = staged_workload(subject, case)
        with quiet_torch(), load.engine() as engine:
            load.serve(engine)
            reasons = fences(engine).keys()
    owed = "fine" if case.can_be_staged else "stager_declined"
    assert ("extend", owed) in reasons
    assert ("extend", "no_stager") not in reasons


class Nobody(Stager):
    """Serves algorithms that the kit has none of."""

    @classmethod
    def why_not(cls, algorithm):
        return ["it needs more"]

    def stage(self, batch):
        return True


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "stager.why_not"])
def test_a_stager_that_serves_nothing_here_is_not_judged(check):
    subject = Subject(PluginRecord.of_class("stager", Nobody), Nobody)
    with pytest.raises(NotApplicable, match="it needs more"):
        CHECKS[check].run(subject)
