"""Rows and pages: one owner each, whatever order they come and go in."""

from __future__ import annotations

import random

import pytest

from warcore.pools import Pool, pages_for


def test_number_0_is_never_handed_out_because_padding_owns_it():
    pool = Pool(3)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    assert len(pool) == 0


def test_the_number_freed_last_is_handed_out_first():
    pool = Pool(5)
    first, second, *_ = pool.allocate(4)
    pool.free([second])
    pool.free([first])
    assert pool.allocate(2) == [first, second]


def test_a_rows_next_owner_gets_its_pages_in_another_order():
    """In the same order the table would not change, and a late read would go unseen."""
    pool = Pool(5)
    taken = pool.allocate(4)
    pool.free(taken)
    assert pool.allocate(4) == taken[::-1]


def test_giving_a_number_back_twice_is_caught():
    pool = Pool(2)
    (number,) = pool.allocate()
    pool.free([number])
    with pytest.raises(AssertionError, match=f"{number} was given back twice"):
        pool.free([number])


def test_giving_the_padding_number_back_is_caught():
    with pytest.raises(AssertionError):
        Pool(2).free([0])


def test_taking_more_than_there_are_is_caught():
    with pytest.raises(AssertionError, match="without asking"):
        Pool(2).allocate(3)


def test_a_pool_of_nothing_is_refused():
    with pytest.raises(ValueError, match="holds nothing"):
        Pool(0)


def test_no_number_ever_has_two_owners():
    pool, draw, owned = Pool(20), random.Random(5), []
    for _ in range(2000):
        if draw.random() < 0.5:
            owned += pool.allocate(draw.randint(0, len(pool)))
        else:
            draw.shuffle(owned)
            split = draw.randint(0, len(owned))
            pool.free(owned[split:])
            del owned[split:]
        assert len(set(owned)) == len(owned) == pool.capacity - len(pool)
        assert set(owned) <= set(range(1, 21))


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_pages_for_tokens(tokens, pages):
    assert pages_for(tokens, 16) == pages
