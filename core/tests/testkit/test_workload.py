"""The kit's workload meets the hard cases, answers alike in every way, and leaks nothing."""

from __future__ import annotations

import attrs
import pytest
from toys import Replaying

from warcore import SharedReadEnds
from warcore.options import NoOptions
from warcore.testkit.engines.tinymodel import ALPHABET, EOS, Letters
from warcore.testkit.engines.workload import REQUESTS, Asked, Workload, with_options
from warcore.testkit.stands.cell import Shape
from warcore.testkit.stands.paged import Paged, paged
from warcore.testkit.stands.recorders import Recording, RecordingSegments
from warcore.testkit.stands.walk import quiet_torch

DOUBLE = Shape(dtype="float64")
BACKEND = paged(SharedReadEnds.IN_REPLAY)


@pytest.fixture(autouse=True)
def one_thread():
    with quiet_torch():
        yield


@pytest.fixture(scope="module")
def plain():
    return Workload(DOUBLE, BACKEND).run()


def test_requests_stop_end_abort_and_step_back(plain):
    assert {answer.reason for answer in plain.answers} == {"stop", "length", "abort"}
    assert plain.retracts
    assert plain.error is None
    assert any(len(asked.prompt) > Workload().config().prefill_chunk for asked in REQUESTS)


@pytest.mark.parametrize("host", ["inline", "threads", "seeded:3"])
@pytest.mark.parametrize("runner", ["none", Recording, RecordingSegments, Replaying])
def test_every_way_gives_the_same_answers(plain, host, runner):
    found = Workload(DOUBLE, BACKEND, runner).run(host)
    assert found.answers == plain.answers
    assert bool(found.replays) == (runner != "none")


def test_the_normal_loop_gives_the_same_answers_to_who_is_not_aborted(plain):
    found = Workload(DOUBLE, BACKEND).run(loop="normal")
    for got, owed in zip(found.answers, plain.answers, strict=True):
        assert got == owed or got.reason == owed.reason == "abort"


@pytest.mark.parametrize("page", [1, 4, 16, 64])
def test_nothing_is_leaked_whatever_the_pages(page):
    found = Workload(attrs.evolve(DOUBLE, page_size=page), BACKEND).run()
    assert found.leaked == (0, 0)
    assert found.error is None


def test_further_fields_reach_the_engine():
    workload = Workload(DOUBLE, BACKEND, more={"max_running_requests": 1})
    with workload.engine(mixed=True) as engine:
        facts = engine.describe()
    assert (facts["max_running_requests"], facts["mixed"]) == (1, True)


class Failing(Paged):
    def forward(self, q, k, v, layer, batch):
        raise RuntimeError("planned")


def test_a_step_that_fails_is_told():
    found = Workload(DOUBLE, Failing, requests=(Asked("a", 2),)).run()
    assert "planned" in found.error
    assert found.leaked == (0, 0)


@attrs.frozen
class Options:
    width: int = 1


class Optioned(Paged):
    Options = Options


def test_options_that_are_parsed_already_reach_the_plugin():
    with Workload(DOUBLE, with_options(Optioned, Options(7))).engine() as engine:
        assert engine._assembly.runner._backend.ctx.options == Options(7)
    assert with_options(Optioned, None) is Optioned
    assert with_options(Optioned, NoOptions()).__name__ == "Optioned"


def test_each_letter_is_a_token():
    letters = Letters()
    assert letters.decode([*letters.encode(ALPHABET), EOS]) == ALPHABET
