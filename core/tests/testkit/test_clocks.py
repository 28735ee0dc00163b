"""Vector clocks, the history behind them, and both against every interleaving there is."""

from __future__ import annotations

import random

import pytest
from interleavings import (
    depends_on_timing,
    races_by_rule,
    random_program,
    unordered_pairs,
)

from warcore.testkit.access import Access
from warcore.testkit.detectors.clocks import Clocks
from warcore.testkit.detectors.history import History, Touch

PROGRAMS = 3000


def programs(count=PROGRAMS, seed=1, **more):
    draw = random.Random(seed)
    return [random_program(draw, **more) for _ in range(count)]


# ---- clocks --------------------------------------------------------------------------------------


def test_nobody_knows_of_anybody_who_has_told_nothing():
    clocks = Clocks()
    assert not clocks.is_after("b", "a", clocks.epoch("a"))


def test_who_is_told_comes_after_all_before_and_nothing_later():
    clocks = Clocks()
    early = clocks.epoch("a")
    clocks.acquire("b", clocks.release("a"))
    assert clocks.is_after("b", "a", early)
    assert not clocks.is_after("b", "a", clocks.epoch("a"))


def test_what_was_heard_is_passed_on():
    clocks = Clocks()
    early = clocks.epoch("a")
    clocks.acquire("b", clocks.release("a"))
    clocks.acquire("c", clocks.release("b"))
    assert clocks.is_after("c", "a", early)


def test_what_an_older_past_tells_takes_nothing_away():
    clocks = Clocks()
    old = clocks.release("a")
    late = clocks.epoch("a")
    clocks.acquire("b", clocks.release("a"))
    clocks.acquire("b", old)
    assert clocks.is_after("b", "a", late)


def test_settled_is_what_all_the_living_know():
    clocks = Clocks()
    early = clocks.epoch("a")
    clocks.acquire("b", clocks.release("a"))
    late = clocks.epoch("a")
    clocks.acquire("b", clocks.release("a"))
    clocks.acquire("c", {"a": early})
    assert clocks.settled(["b"])["a"] == late
    assert clocks.settled(["b", "c"])["a"] == early


# ---- the history ---------------------------------------------------------------------------------


def touch(actor, kind, low, high, *, epoch=1, operation=""):
    access = Access("buffer", kind, low, high, operation=operation)
    return Touch(actor, epoch, access, turn=(0, 0), work="", base=0, low=low, high=high)


@pytest.mark.parametrize(
    ("one", "other", "races"),
    [
        (("a", "write", 0, 8), ("b", "write", 4, 12), True),
        (("a", "read", 0, 8), ("b", "write", 7, 8), True),
        (("a", "write", 0, 8), ("b", "read", 0, 1), True),
        (("a", "read", 0, 8), ("b", "read", 0, 8), False),
        (("a", "write", 0, 8), ("b", "write", 8, 12), False),
        (("a", "write", 0, 8), ("a", "write", 0, 8), False),
    ],
)
def test_a_race_takes_two_actors_one_write_and_a_common_byte(one, other, races):
    history = History(Clocks())
    assert history.add(touch(*one)) == []
    assert bool(history.add(touch(*other))) is races


def test_of_one_origin_each_byte_is_kept_once():
    history = History(Clocks())
    for round_ in range(100):
        for low in range(0, 80, 8):
            history.add(touch("a", "read", low + round_ % 3, low + 8, epoch=round_ + 1))
    assert len(history) <= 2 * 10


def test_a_touch_in_the_middle_of_an_older_one_leaves_its_ends():
    history = History(Clocks())
    history.add(touch("a", "write", 0, 30, epoch=1))
    history.add(touch("a", "write", 10, 20, epoch=2))
    found = history.add(touch("b", "read", 0, 30))
    assert {(t.low, t.high, t.epoch) for t in found} == {(0, 10, 1), (10, 20, 2), (20, 30, 1)}


def test_other_origins_are_kept_apart_so_that_each_is_reported():
    history = History(Clocks())
    history.add(touch("a", "read", 0, 8, operation="one"))
    history.add(touch("a", "read", 0, 8, operation="two"))
    assert len(history.add(touch("b", "write", 0, 8))) == 2


def test_forgetting_leaves_what_is_not_settled():
    history = History(Clocks())
    history.add(touch("a", "read", 0, 8, epoch=1))
    history.add(touch("a", "read", 8, 16, epoch=2))
    history.forget({"a": 1})
    assert len(history) == 1
    history.forget({"a": 2})
    assert len(history) == 0


# ---- against every interleaving ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "most"),
    [({}, 3), ({"streams": "SFT"}, 3), ({"host": True}, 15)],
    ids=["two streams", "three streams", "two streams, the host and their host code"],
)
def test_no_program_that_depends_on_timing_is_missed(more, most):
    """Of 3,000 programs at most `most` are called racy although every interleaving gives the same:
    two writes that nothing orders, and a third that hides them before anybody reads.
    """
    missed = alarms = racy = 0
    for program in programs(**more):
        truth, found = depends_on_timing(program), races_by_rule(program)
        racy += truth
        missed += truth and not found
        alarms += bool(found) and not truth
    assert racy > PROGRAMS // 2
    assert missed == 0
    assert alarms <= most


@pytest.mark.parametrize("sweep", [False, True])
def test_each_racing_pair_is_found_and_no_other(sweep):
    """Against the transitive closure; forgetting at every operation loses none."""
    for program in programs(1500, host=True, streams="SFT", high=25):
        assert races_by_rule(program, sweep=sweep) == unordered_pairs(program)
