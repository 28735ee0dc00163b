"""The scheduler: who runs next, and the two loops that run it.

First come, first served. Prefills go before decodes, in chunks of at most `prefill_chunk` tokens.
When pages run out the newest request steps back and is resumed later from its settled tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from warcore.found import Drafts
from warcore.launch import Entry
from warcore.pools import Pages, Pool, pages_for
from warcore.request import FinishReason
from warcore.windows import WindowPages

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.found import Found
    from warcore.launch import Launch
    from warcore.launcher import Launcher
    from warcore.limits import Limits
    from warcore.request import Request


log = logging.getLogger("warcore.scheduler")


# ---- the two loops: one iteration each ---------------------------------------------------------


def overlap_loop(core: Scheduler) -> None:
    """Prepare and launch the next step while the device still runs the one before."""
    batch = core.next_batch()
    launch = core.launch(batch) if batch else None
    if launch:
        core.barrier(launch)  # before collecting: that frees rows which the launch still reads
    if core.in_flight:
        core.collect(core.in_flight)
    core.in_flight = launch


def normal_loop(core: Scheduler) -> None:
    """Launch a step and wait for all of it: no fence, no overlap."""
    batch = core.next_batch()
    launch = core.launch(batch, fenced=False) if batch else None
    if launch:
        core.collect(launch)


# ------------------------------------------------------------------------------------------------


class Scheduler:
    """Host state of everything that waits or runs. All methods are called on one host thread."""

    def __init__(
        self, launcher: Launcher, limits: Limits, place: Callable[[int, int], int]
    ) -> None:
        """`place(row, index)`: where the table keeps page number `index` of a row."""
        self.limits = limits
        self.rows = Pool(limits.max_running)
        self.pages = Pages(limits.pages, limits.page_size, place)
        self.windows: WindowPages | None = None
        """The pages of layers with a window, where these have a pool of their own."""
        if limits.window is not None:
            self.windows = WindowPages(limits.swa_pages, limits.page_size, limits.window)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        """Those for which something is left to launch, in the order of admission."""
        self.in_flight: Launch | None = None
        self.steps = 0
        """Collected: one that is in flight is not over."""
        self.tokens = 0
        self.retracts = 0
        self.drafts = Drafts()
        self.news: list[Request] = []
        """Requests that finished, and streaming ones that got a token, since the engine looked."""
        self.launcher = launcher
        self._step_pages = pages_for(1 + limits.drafted, limits.page_size)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs, or is still to be collected."""
        return bool(self.waiting or self.running or self.in_flight)

    def add(self, request: Request) -> None:
        """Queue a request; one that may produce nothing is finished already."""
        if request.limit > 0:
            self.waiting.append(request)
        else:
            self.end(request, FinishReason.LENGTH)

    def end(
        self, request: Request, reason: FinishReason, error: BaseException | None = None
    ) -> None:
        """Finish a request from outside, at any moment: waiting, prefilling, in flight."""
        if not request.finished:
            request.finish(reason, error)
            self._forget(request)

    # ---- one step: what the loops call ----

    def next_batch(self) -> list[Entry] | None:
        """Choose the entries of the next step and give them rows and pages; None: nothing to do."""
        if self.limits.mixed:
            # Decodes first: making room for them may retract, which no chosen chunk survives.
            decodes = self._decodes()
            return self._chunks() + decodes or None
        return self._chunks() or self._decodes() or None

    def launch(self, entries: list[Entry], *, fenced: bool = True) -> Launch:
        """Submit the step, and take back what no later step of its requests will need.

        A row is free from the moment nothing more is launched for it, although the launch still
        reads it: the next write of the tables waits for that at the barrier.
        """
        mapped = None if self.windows is None else self.windows.owed()
        launch = self.launcher.launch(entries, self.pages.owed(), mapped, fenced=fenced)
        for entry in entries:
            if entry.samples and entry.request.sampled >= entry.request.limit:
                self._release(entry.request)
            elif self.windows is not None:
                self.windows.trim(entry.request)
        return launch

    def barrier(self, launch: Launch) -> None:
        """Later table writes wait for the launch's fence. Does not block."""
        self.launcher.barrier(launch)

    def collect(self, launch: Launch) -> None:
        """Wait for the launch's results and settle them; its requests fail if the step did."""
        found = self.launcher.collect(launch)
        self.steps += 1
        if found is None:
            for entry in launch.entries:
                self.end(entry.request, FinishReason.ERROR, launch.error)
            return
        for entry, each in zip(launch.entries, found, strict=True):
            if entry.samples and not entry.request.finished:
                self._settle(entry, each)

    # ---- who runs ----

    def _chunks(self) -> list[Entry]:
        """Prefill chunks: the unfinished prefills, then as many newcomers as fit."""
        budget = self.limits.prefill_chunk
        entries = []
        for request in self.running:
            if request.prefilling and budget:
                entries.append(self._chunk(request, budget))
                budget -= entries[-1].tokens
        while budget and self._admit_next():
            entries.append(self._chunk(self.running[-1], budget))
            budget -= entries[-1].tokens
        return entries

    def _chunk(self, request: Request, budget: int) -> Entry:
        start = request.prefilled
        tokens = min(budget, len(request.prefill_ids) - start)
        if self.windows is not None:
            self.windows.cover(request, start + tokens)
        request.prefilled += tokens
        samples = not request.prefilling
        request.pending += samples
        return Entry(request, request.row, start, tokens, start + tokens, samples)

    def _admit_next(self) -> bool:
        """Admit the head of the queue if a row and its pages are free; nobody jumps the queue."""
        if not self.waiting or not len(self.rows):
            return False
        request = self.waiting[0]
        if request.pending:
            return False  # just retracted: its last token is still on its way
        need = self.pages.lacks(request, len(request.prompt_ids) + len(request.output_ids))
        # Headroom for the next step of every running request, or the newcomer is retracted at once.
        if len(self.pages) < need + len(self.running) * self._step_pages:
            return False
        self.waiting.popleft()
        request.start(self.rows.allocate()[0])
        self.running.append(request)
        self.pages.grow(request, need)
        return True

    def _decodes(self) -> list[Entry]:
        """One token, or what is drafted too, for every request whose prefill has been launched."""
        size, drafted = self.limits.page_size, self.limits.drafted
        decoding = [request for request in self.running if not request.prefilling]
        full = [
            r for r in decoding if r.written + drafted >= len(r.pages) * size and self._lacks(r) > 0
        ]
        for request in full:
            self._make_room(request)
        if full:  # which may have cost some of them their place
            decoding = [request for request in decoding if request.row]
        return [self._decode(request) for request in decoding]

    def _decode(self, request: Request) -> Entry:
        drafted = self.limits.drafted
        if self.windows is not None:
            self.windows.cover(request, self._reach(request))
        request.pending += 1
        if not drafted:
            return Entry(request, request.row, None, 1, request.written, samples=True)
        request.slack += drafted
        # Nothing is accepted beyond its end, so that no sequence can be longer than `bound`.
        end = request.most_tokens
        bound = min(request.written, end + self.limits.behind)
        return Entry(request, request.row, None, 1, bound, True, drafted, end)

    def _lacks(self, request: Request) -> int:
        """Pages for the tokens of its next step."""
        return self.pages.lacks(request, self._reach(request))

    def _reach(self, request: Request) -> int:
        """Positions that its next step computes at most, drafts behind its own end included."""
        most = request.most_tokens + self.limits.behind
        return min(request.written + 1 + self.limits.drafted, most)

    def _make_room(self, request: Request) -> None:
        """Pages for the next step of `request`, at the cost of the newest ones if need be."""
        if not request.row:
            return  # it was the cost of another one's
        need = self._lacks(request)
        while len(self.pages) < need:
            newest = self.running[-1]
            self._retract(newest)
            if newest is request:
                return
        self.pages.grow(request, need)

    def _retract(self, request: Request) -> None:
        """Step back to the head of the queue. A token on its way still counts when it arrives."""
        self._release(request)
        self.waiting.appendleft(request)
        self.retracts += 1

    def _release(self, request: Request) -> None:
        """Take row and pages back, at once and on the host.

        Sound although a launch may still run: keys and values are written and read in forward
        order, and the tables are rewritten only behind the barrier of that launch.
        """
        self.running.remove(request)
        if self.windows is not None:
            self.windows.release(request)
        self.pages.release(request)
        self.rows.free([request.row])
        request.row = 0

    def _settle(self, entry: Entry, found: Found) -> None:
        request = entry.request
        request.pending -= 1
        request.slack -= entry.drafted
        self.drafts.count(request, found)
        try:
            for token in found.tokens:
                request.accept(token)
                self.tokens += 1
                if request.finished:  # and what stands behind its end is nobody's
                    break
        except Exception as error:  # a tokenizer's failure ends its own request
            log.exception("a token of request %d cannot be decoded", request.id)
            request.finish(FinishReason.ERROR, error)
        if request.finished:
            self._forget(request)
        elif request.streams:
            self.news.append(request)

    def _forget(self, request: Request) -> None:
        """It has finished: report it, and take back what it still holds."""
        self.news.append(request)
        if request.row:
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)
