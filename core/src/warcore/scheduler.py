"""The scheduler: who runs next, and the two loops that run it.

First come, first served. Prefills go before decodes, in chunks of at most `prefill_chunk` tokens.
When pages run out the newest request steps back and is resumed later from its settled tokens.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from typing import TYPE_CHECKING

import attrs

from warcore.contract import ForwardMode
from warcore.fence import FenceCounters, ReadFence
from warcore.launch import Entry, Launch, StepInputs
from warcore.pools import Pool, pages_for
from warcore.request import FinishReason
from warcore.sampling import SamplingBatch
from warcore.staging import StagingRing, float_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warcore.device import Device, Pending, Stream
    from warcore.request import Request
    from warcore.shared import SharedBuffers
    from warcore.step import Step

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


@attrs.frozen
class Limits:
    """How much may run at once."""

    max_running: int
    max_context: int
    page_size: int
    pages: int
    prefill_chunk: int
    """Prompt tokens per step, over all requests."""
    mixed: bool = False
    """Whether a step may hold prefill chunks and decodes; such a step has a coarse fence."""


class Scheduler:
    """Host state of everything that waits or runs. All methods are called on one host thread."""

    def __init__(
        self,
        device: Device,
        schedule: Stream,
        forward: Stream,
        *,
        shared: SharedBuffers,
        step: Step,
        limits: Limits,
        forced_coarse: bool = False,
    ) -> None:
        self.limits = limits
        self.rows = Pool(limits.max_running)
        self.pages = Pool(limits.pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        """In the order of admission."""
        self.in_flight: Launch | None = None
        self.counters = FenceCounters()
        self.steps = 0
        self.retracts = 0
        self.news: list[Request] = []
        """Requests that finished, and streaming ones that got a token, since the engine looked."""
        self._device = device
        self._schedule = schedule
        self._forward = forward
        self._shared = shared
        self._step = step
        self._forced_coarse = forced_coarse
        self._writes: list[Pending] = []
        """Schedule-stream work that the next launch stands on."""
        self._staging = StagingRing(device, schedule, submitted=self._writes.append)
        self._prepared = device.event()
        self._places: list[int] = []
        self._pages: list[int] = []
        self._decode_of: tuple[tuple[int, int], ...] = ()
        self._decode_inputs: tuple[StepInputs, SamplingBatch] | None = None

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs, or is still to be collected."""
        return bool(self.waiting or self.running or self.in_flight)

    @property
    def staging_stalls(self) -> int:
        """How often the host had to wait for a copy before it could stage more."""
        return self._staging.stalls

    # ---- what runs next ----

    def next_batch(self) -> list[Entry] | None:
        """Choose the entries of the next step and give them rows and pages; None: nothing to do."""
        if self.limits.mixed:
            # Decodes first: making room for them may retract, which no chosen chunk survives.
            decodes = self._decodes()
            return self._chunks() + decodes or None
        return self._chunks() or self._decodes() or None

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
        return self._entry(request, min(budget, len(request.prefill_ids) - request.computed))

    def _entry(self, request: Request, tokens: int) -> Entry:
        request.computed += tokens
        samples = not request.prefilling
        request.in_flight += samples
        return Entry(request, request.attempt, tokens, samples)

    def _admit_next(self) -> bool:
        """Admit the head of the queue if a row and its pages are free; it never jumps the queue."""
        if not self.waiting or not len(self.rows) or len(self.running) >= self.limits.max_running:
            return False
        request = self.waiting[0]
        if request.in_flight:
            return False  # just retracted: its last token is still on its way
        need = pages_for(len(request.prompt_ids) + len(request.output_ids), self.limits.page_size)
        # One page of headroom for every running request, or the newcomer is retracted at once.
        if len(self.pages) < need + len(self.running):
            return False
        self.waiting.popleft()
        request.start(self.rows.allocate()[0])
        self.running.append(request)
        self._grow(request, need)
        return True

    def _decodes(self) -> list[Entry]:
        """One token for every running request that may still produce one."""
        for request in list(self.running):
            if self._may_decode(request):
                self._make_room(request)
        return [self._entry(request, 1) for request in self.running if self._may_decode(request)]

    def _may_decode(self, request: Request) -> bool:
        return bool(request.row) and not request.prefilling and request.sampled < request.limit

    def _make_room(self, request: Request) -> None:
        """A slot for the next token of `request`, at the cost of the newest ones if need be."""
        if request.computed < len(request.pages) * self.limits.page_size:
            return
        while not len(self.pages):
            newest = self.running[-1]
            self._retract(newest)
            if newest is request:
                return
        self._grow(request, 1)

    def _grow(self, request: Request, count: int) -> None:
        """Give `request` pages; the table learns of them with the next schedule-stream write."""
        first = len(request.pages)
        pages = self.pages.allocate(count)
        request.pages += pages
        self._places += [self._shared.place(request.row, first + i) for i in range(count)]
        self._pages += pages

    def _retract(self, request: Request) -> None:
        """Step back to the head of the queue. A token in flight still counts when it arrives."""
        self._release(request)
        self.waiting.appendleft(request)
        self.retracts += 1

    def _release(self, request: Request) -> None:
        """Take row and pages back, at once and on the host.

        Sound although a launch may still run: keys and values are written and read in forward
        order, and the table is rewritten only behind the barrier of that launch.
        """
        self.running.remove(request)
        # NOTE: writes for pages taken back in this same iteration must not reach the table.
        if self._places:
            planned = zip(self._places, self._pages, strict=True)
            kept = [(place, page) for place, page in planned if page not in request.pages]
            self._places, self._pages = [p for p, _ in kept], [p for _, p in kept]
        self.pages.free(request.pages)
        self.rows.free([request.row])
        request.pages, request.row = [], 0

    # ---- one step ----

    def launch(self, entries: list[Entry], *, fenced: bool = True) -> Launch:
        """Submit the step: table writes and inputs on the schedule stream, the rest after them."""
        mode = self._mode(entries)
        self._write_table()
        inputs, sampling = self._inputs(mode, entries)
        launch = Launch(
            mode=mode,
            entries=entries,
            max_seq_len=max(entry.request.computed for entry in entries),
            inputs=inputs,
            sampling=sampling,
            writes=self._writes.copy(),
            result=self._device.host_buffer(len(entries), inputs.rows.dtype),
        )
        self._writes.clear()
        if fenced:
            launch.fence = ReadFence(self._device, mode, forced_coarse=self._forced_coarse)
        self._forward.wait(self._prepared.record(self._schedule))
        launch.pending = self._forward.submit(self._step.run, launch)
        self.steps += 1
        return launch

    def barrier(self, launch: Launch) -> None:
        """Later work on the schedule stream waits for the launch's fence. Does not block."""
        assert launch.fence is not None
        self._writes.append(self._schedule.submit(launch.fence.wait, self._schedule))

    def collect(self, launch: Launch) -> None:
        """Wait for the launch's results and settle them.

        Raises what a schedule-stream write raised: the tables cannot be trusted any more.
        """
        assert launch.pending is not None
        launch.pending.result()
        assert launch.copied is not None
        launch.copied.synchronize()
        self._step.release(launch)
        if launch.fence is not None:
            self.counters.count(launch.fence.mode, launch.fence.reason, launch.fence.detail)
        if launch.write_error is not None:
            raise launch.write_error
        if launch.error is not None:
            # The author's traceback, once for the step; each request keeps the error itself.
            log.error("a step of %d requests failed", len(launch.entries), exc_info=launch.error)
            for entry in launch.entries:
                self.end(entry.request, FinishReason.ERROR, launch.error)
            return
        assert launch.result is not None
        for entry, token in zip(launch.entries, launch.result.tolist(), strict=True):
            self._settle(entry, token)

    def _settle(self, entry: Entry, token: int) -> None:
        """Append one result, unless its request ended or started anew since the launch."""
        request = entry.request
        if request.finished or not entry.samples or entry.attempt != request.attempt:
            return
        request.in_flight -= 1
        try:
            request.accept(token)
        except Exception as error:  # noqa: BLE001  a tokenizer's failure ends its own request
            request.finish(FinishReason.ERROR, error)
        if request.finished:
            self._forget(request)
        elif request.streams:
            self.news.append(request)

    def end(
        self, request: Request, reason: FinishReason, error: BaseException | None = None
    ) -> None:
        """Finish a request from outside, at any moment: waiting, prefilling, in flight."""
        if not request.finished:
            request.finish(reason, error)
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self.news.append(request)
        if request.row:
            self._release(request)
        else:
            self.waiting.remove(request)

    # ---- what a step is made of ----

    def _mode(self, entries: list[Entry]) -> ForwardMode:
        """DECODE if every request goes on by a token from the relay; MIXED if only some do."""
        decodes = sum(self._is_decode(entry) for entry in entries)
        if decodes == len(entries):
            return ForwardMode.DECODE
        return ForwardMode.MIXED if decodes else ForwardMode.EXTEND

    @staticmethod
    def _is_decode(entry: Entry) -> bool:
        return entry.request.computed > len(entry.request.prefill_ids)

    def _write_table(self) -> None:
        """Submit what the tables must learn before this step; nothing most of the time."""
        if not self._places:
            return
        count = len(self._places)
        staged = self._staging.put(array("q", self._places + self._pages))
        self._places, self._pages = [], []
        self._writes.append(self._shared.write_pages(staged[:count], staged[count:]))

    def _inputs(self, mode: ForwardMode, entries: list[Entry]) -> tuple[StepInputs, SamplingBatch]:
        if mode is not ForwardMode.DECODE:
            return self._extend_inputs(entries), self._sampling(entries)
        # The same requests decode step after step: what describes them is written once.
        of = tuple((entry.request.id, entry.attempt) for entry in entries)
        if of != self._decode_of or self._decode_inputs is None:
            rows = self._staging.put(array("q", [entry.request.row for entry in entries]))
            inputs = StepInputs(rows, None, None, None)
            self._decode_of, self._decode_inputs = of, (inputs, self._sampling(entries))
        return self._decode_inputs

    def _extend_inputs(self, entries: list[Entry]) -> StepInputs:
        words, tokens = array("q"), array("q")
        prefixes, lens = array("q"), array("q")
        for entry in entries:
            request = entry.request
            words.append(request.row)
            lens.append(entry.tokens)
            if self._is_decode(entry):
                prefixes.append(-1)
                tokens.append(-1)
            else:
                start = request.computed - entry.tokens
                prefixes.append(start)
                tokens.extend(request.prefill_ids[start : request.computed])
        staged = self._staging.put(words + prefixes + lens + tokens)
        size = len(entries)
        rows, prefix, length = staged[: 3 * size].view(3, size)
        return StepInputs(rows, prefix, length, staged[3 * size :])

    def _sampling(self, entries: list[Entry]) -> SamplingBatch:
        return SamplingBatch.build(
            [entry.request.params for entry in entries],
            [entry.request.seed for entry in entries],
            self._to_device,
        )

    def _to_device(
        self, values: Sequence[int] | Sequence[float], dtype: torch.dtype
    ) -> torch.Tensor:
        """Host values as a device tensor, through the fenced ring."""
        import torch

        target = torch.empty(len(values), dtype=dtype, device=self._device.torch_device)
        if dtype.is_floating_point:
            staged = self._staging.put(float_words(list(values))).view(torch.float64)
        else:
            staged = self._staging.put(array("q", map(int, values)))
        self._writes.append(self._schedule.submit(target.copy_, staged))
        return target
