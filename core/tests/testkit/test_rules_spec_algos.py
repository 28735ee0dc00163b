"""Each wrong algorithm is found by its check, and right ones of every kind raise no alarm."""

from __future__ import annotations

from contextlib import suppress

import attrs
import pytest
import torch
from wrong_plugins.catalogue import entries, under_check

from warcore import Draft, PluginRecord, SpecAlgorithm
from warcore.testkit.engines.draftlog import DraftLog
from warcore.testkit.engines.specworkload import REQUESTS, Way, workload
from warcore.testkit.models.distribution import FAR, deviation
from warcore.testkit.outcome import NotApplicable, Refuted, Unproven
from warcore.testkit.runs.check import checks_of
from warcore.testkit.subject import Subject

CHECKS = {check.name: check for check in checks_of("spec_algo") if check.kind == "spec_algo"}
ENTRIES = [each for each in entries() if each.path.parent.name == "spec_algos"]
WRONG = [each for each in ENTRIES if not each.is_right]
FOUND = [each for each in WRONG if each.path.stem != "accepts_what_it_refuses_later"]
"""The others raise."""
RIGHT = [each for each in ENTRIES if each.is_right]


def refuted(check, subject):
    with pytest.raises(Refuted) as raised:
        CHECKS[check].run(subject)
    return raised.value.failure


def subject_of(cls, **facts):
    return Subject(PluginRecord.of_class("spec_algo", cls), cls, **facts)


def before(check):
    """What has to be passed before `check` is run."""
    found = set()
    for need in (*CHECKS[check].needs, *CHECKS[check].after):
        found |= {need} | before(need)
    return found


@pytest.mark.parametrize("entry", FOUND, ids=str)
def test_a_wrong_algorithm_is_found_by_the_detector_that_it_names(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        failure = refuted(entry.breaks, subject)
        assert set(failure.seen_by) >= set(entry.detectors)
        assert failure.cell in subject.offered


def test_what_refuses_to_be_built_raises_out_of_its_own_code(tmp_path):
    (entry,) = (each for each in WRONG if each.path.stem == "accepts_what_it_refuses_later")
    with (
        under_check(entry, tmp_path) as subject,
        pytest.raises(Exception, match="at most 4 tokens"),
    ):
        CHECKS[entry.breaks].run(subject)


@pytest.mark.slow
@pytest.mark.parametrize("entry", FOUND, ids=str)
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
                verdict(check, subject)


@pytest.mark.slow
@pytest.mark.parametrize("entry", RIGHT, ids=str)
def test_a_right_algorithm_raises_no_alarm(entry, tmp_path):
    with under_check(entry, tmp_path) as subject:
        for check in CHECKS.values():
            verdict(check, subject)


def verdict(check, subject):
    """Only these two may have nothing to say of an algorithm."""
    may = {"spec_algo.distribution", "spec_algo.later_prefill_reader"}
    with suppress(*([NotApplicable] if check.name in may else [])):
        check.run(subject)


def test_the_requests_meet_what_they_are_for():
    served = workload(subject_of(right("right")), None).run()
    assert served.retracts
    reasons = [answer.reason for answer in served.answers]
    assert reasons.count("abort") == 2
    assert len(served.answers[REQUESTS.index(_longest())].tokens) > 20


def _longest():
    return max(REQUESTS, key=lambda asked: asked.tokens)


def right(name):
    (entry,) = (each for each in RIGHT if each.path.stem == name)
    with under_check(entry, None) as subject:
        return subject.cls


# ---- where there is no verdict -------------------------------------------------------------------


class Silent(SpecAlgorithm):
    """Means none of its tokens."""

    later_prefill_reader = False

    def draft(self, batch):
        tokens = torch.zeros(batch.size, self.ctx.num_tokens, dtype=torch.int64)
        return Draft(tokens, lengths=torch.zeros(batch.size, dtype=torch.int64))


def test_an_algorithm_that_never_drafts_proves_nothing():
    with pytest.raises(Unproven, match="never drafted a token"):
        CHECKS["spec_algo.lossless"].run(subject_of(Silent))


class Nowhere(Silent):
    @classmethod
    def why_not(cls, spec):
        return ["needs weights of its own"]


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "spec_algo.why_not"])
def test_an_algorithm_that_serves_nothing_here_is_not_judged(check):
    with pytest.raises(NotApplicable, match="of its own"):
        CHECKS[check].run(subject_of(Nowhere))


class Lucky(Silent):
    """Draws from a generator of its own."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.luck = torch.Generator()
        self.luck.seed()

    def draft(self, batch):
        shape = batch.size, self.ctx.num_tokens
        return Draft(torch.randint(0, 30, shape, generator=self.luck))


def test_luck_of_its_own_cannot_be_told_from_state():
    with pytest.raises(Unproven, match="torch's own generator"):
        CHECKS["spec_algo.relay_only"].run(subject_of(Lucky))


# ---- what the detectors stand on -----------------------------------------------------------------


def test_many_drawn_tokens_are_accepted_with_luck_of_their_own():
    log = DraftLog()
    served = workload(subject_of(right("draws")), Way("k7", 7), log).run()
    assert log.draws
    assert served.error is None


@pytest.mark.parametrize("seed", range(20))
def test_honest_samples_are_never_far(seed):
    luck = torch.Generator().manual_seed(seed)
    probs = torch.rand(30, generator=luck, dtype=torch.float64) ** 4
    draws = torch.multinomial(probs, 1_200, replacement=True, generator=luck)
    expected = 1_200 * probs / probs.sum()
    assert deviation(draws.bincount(minlength=30), expected) < FAR
    assert deviation(draws.bincount(minlength=30), expected.roll(1)) > FAR
