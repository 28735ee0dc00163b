"""The window pool: what a request holds of it while it runs, and that it is always enough.

The scheduler is the real one; the device below it is a model that keeps who wrote what where.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import attrs
import pytest
from toys import ToyTokenizer

from warcore import SamplingParams
from warcore.found import Found
from warcore.limits import Limits
from warcore.pools import pages_for
from warcore.request import FinishReason, Request
from warcore.scheduler import Scheduler, normal_loop, overlap_loop
from warcore.windows import WindowPages, most_window_pages


def request(prompt=1, most=100, context=200):
    return Request.new(
        0,
        None,
        [1] * prompt,
        SamplingParams(max_new_tokens=most),
        tokenizer=ToyTokenizer(),
        max_context=context,
        seed=0,
    )


@pytest.fixture
def decoding():
    """A request of 11 tokens whose prefill was launched, in full pages 51, 52, ... of 4 tokens."""
    one = request(11)
    one.start(1)
    one.prefilled, one.pending, one.pages = 11, 1, list(range(51, 61))
    return one


def test_a_covered_page_is_owed_to_the_map_once(decoding):
    windows = WindowPages(9, 4, window=100)
    windows.cover(decoding, 11)
    assert windows.owed() == ([51, 52, 53], [1, 2, 3])
    windows.cover(decoding, 12)
    assert windows.owed() == ([], [])
    windows.cover(decoding, 13)
    assert windows.owed() == ([54], [4])


@pytest.mark.parametrize(
    ("window", "kept"),
    [(1, []), (2, [53]), (4, [53]), (5, [53]), (6, [52, 53]), (9, [52, 53]), (10, [51, 52, 53])],
)
def test_what_lies_wholly_behind_the_window_of_the_next_position_is_free(window, kept):
    """Position 12 comes next; with a window of w it sees those from 13 - w on."""
    one = request(12)
    one.start(1)
    one.pages = [51, 52, 53]
    windows = WindowPages(3, 4, window)
    windows.cover(one, 12)
    windows.owed()
    one.prefilled, one.pending = 12, 1
    assert one.next_position == 12
    windows.trim(one)
    assert len(windows) == 3 - len(kept)
    assert windows.owed() == ([page for page in one.pages if page not in kept], [0] * len(windows))


def test_tokens_on_their_way_move_the_window_by_one_each_and_never_by_what_they_may_bring(decoding):
    before = decoding.next_position
    decoding.pending += 1
    decoding.slack += 5
    assert decoding.next_position == before + 1


def test_a_prefill_moves_its_window_chunk_by_chunk():
    one = request(20)
    one.start(1)
    one.pages = [7, 8, 9, 10, 11]
    windows = WindowPages(5, 4, window=3)
    for chunk in (6, 6, 8):
        windows.cover(one, one.prefilled + chunk)
        one.prefilled += chunk
        windows.trim(one)
    one.pending = 1
    windows.trim(one)
    # Position 20 comes next, and sees from 18 on.
    assert len(windows) == 4
    led = dict(zip(*windows.owed(), strict=True))
    assert [page for page in one.pages if led[page]] == [11]


def test_a_page_that_is_released_is_no_longer_owed(decoding):
    windows = WindowPages(9, 4, window=5)
    windows.cover(decoding, 11)
    windows.release(decoding)
    assert windows.owed() == ([], [])
    assert len(windows) == 9


def test_with_as_many_pages_as_the_full_pool_each_has_its_own():
    assert most_window_pages(1000, 4, requests=8, chunk=64, drafted=0) > 8 * 1000 // 4


# ---- whole schedules -----------------------------------------------------------------------------


class Device:
    """What streams would do with a launch: FIFO, with tables that only launches rewrite."""

    def __init__(self, limits, draw):
        self.limits, self.draw = limits, draw
        self.table, self.map = {}, {0: 0}
        self.lengths, self.written = {}, {}
        self.launches = self.trimmed = self.most = 0

    def launch(self, entries, owed, mapped, *, fenced):
        self.table |= dict(zip(*owed, strict=True))
        self.map |= dict(zip(*mapped, strict=True))
        self.trimmed += mapped[1].count(0)
        self.launches += 1
        found = [self._step(entry) for entry in entries]
        self.most = max(self.most, self.windows.capacity - len(self.windows))
        return SimpleNamespace(entries=entries, found=found, error=None)

    def barrier(self, launch):
        pass

    def collect(self, launch):
        return launch.found

    def _step(self, entry):
        """Write, then read as each token of the entry would."""
        first = self.lengths[entry.row] if entry.start is None else entry.start
        count, end = entry.tokens + entry.drafted, entry.end if entry.drafted else 10**6
        own = range(first, min(first + count, end))
        for position in own:
            place = self._place(entry.row, position)
            assert place[0], "it would write to the padding page"
            self.written[place] = entry.request, position
        for position in range(max(first - self.limits.window + 1, 0), own.stop):
            assert self.written[self._place(entry.row, position)] == (entry.request, position)
        taken = self.draw.randint(1, max(len(own), 1)) if entry.drafted else 1
        self.lengths[entry.row] = first + (taken if entry.start is None else entry.tokens)
        return Found([self.draw.randrange(64) for _ in range(taken)])

    def _place(self, row, position):
        index, offset = divmod(position, self.limits.page_size)
        return self.map[self.table[row, index]], offset


def limits(draw, pages_of_all):
    size = draw.choice([1, 2, 4, 8])
    made = Limits(
        max_running=draw.randint(1, 5),
        max_context=48,
        page_size=size,
        pages=pages_for(48 + 6, size) * (5 if pages_of_all else 1) + draw.randint(0, 8),
        prefill_chunk=draw.choice([1, 3, 7, 20, 64]),
        mixed=draw.random() < 0.3,
        drafted=draw.choice([0, 0, 1, 3, 5]),
        window=draw.choice([1, 2, 3, 5, 8, 13, 60]),
    )
    most = most_window_pages(
        made.window,
        size,
        requests=made.max_running,
        chunk=made.prefill_chunk,
        drafted=made.drafted,
    )
    return attrs.evolve(made, swa_pages=min(most, made.pages))


def schedule(seed):
    """Requests that come, finish, step back and are aborted, for 100 steps; then to the end."""
    draw = random.Random(seed)
    sizes = limits(draw, pages_of_all=draw.random() < 0.5)
    device = Device(sizes, draw)
    core = Scheduler(device, sizes, lambda row, index: (row, index))
    device.windows = core.windows
    loop = draw.choice([overlap_loop, overlap_loop, normal_loop])
    known = []
    while device.launches < 100 or core.has_work:
        if device.launches < 100 and draw.random() < 0.4:
            known.append(request(draw.randint(1, 40), draw.randint(1, 30), 48))
            core.add(known[-1])
        if known and draw.random() < 0.03:
            core.end(draw.choice(known), FinishReason.ABORT)
        loop(core)
        for one in core.running:
            span = core.windows._spans.get(one)
            held = 0 if span is None else len(span.pages)
            assert held <= pages_for(sizes.window + 2 * sizes.drafted, sizes.page_size) + 1
    assert len(core.windows) == sizes.swa_pages
    assert len(core.pages) == sizes.pages
    assert not core.windows._spans
    return core, device


def test_over_many_steps_the_pool_is_always_enough_and_every_window_is_where_it_was_written():
    ran = [schedule(seed) for seed in range(100)]
    assert sum(device.launches for _, device in ran) > 10_000
    assert sum(core.retracts for core, _ in ran) > 50
    assert sum(device.trimmed for _, device in ran) > 1000
    # Nor is it far too large, where it is the smaller one.
    tight = [d for c, d in ran if d.limits.swa_pages < d.limits.pages]
    assert max(device.most / device.limits.swa_pages for device in tight) > 0.8
