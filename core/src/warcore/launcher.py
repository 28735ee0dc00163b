"""The launcher: how a decided step reaches the device, and how its results come back."""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING

import attrs

from warcore.contract import ForwardMode
from warcore.fence import FenceCounters, ReadFence
from warcore.found import read, room
from warcore.launch import Launch, StepInputs
from warcore.sampling import SamplingBatch
from warcore.staging import Block, StagingRing

if TYPE_CHECKING:
    import torch

    from warcore.device import Device, Pending, Stream
    from warcore.found import Found
    from warcore.launch import Entry
    from warcore.limits import Limits
    from warcore.shared import SharedBuffers
    from warcore.step import Step

log = logging.getLogger("warcore.launcher")

SAMPLING_COLUMNS = 5
"""At most so many numbers of each request say how it samples."""


class Launcher:
    """Owns the order of the two streams: writes, launch, barrier. Host side.

    Only `collect` waits, for a launch's results; and a launch where all host memory for inputs is
    still being copied from, which `staging_stalls` counts.
    """

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
        self.counters = FenceCounters()
        self._device = device
        self._schedule = schedule
        self._forward = forward
        self._shared = shared
        self._step = step
        self._forced_coarse = forced_coarse
        self._limits = limits
        self._writes: list[Pending] = []
        """Schedule-stream work that the next launch stands on."""
        self._staging = StagingRing(device, schedule, submitted=self._writes.append)
        self._prepared = device.event()
        self._decode_of: list[tuple[int, int, int]] = []
        self._decode_inputs: tuple[StepInputs, SamplingBatch] | None = None

    @property
    def staging_stalls(self) -> int:
        """How often the host had to wait for a copy before it could stage more."""
        return self._staging.stalls

    def launch(
        self,
        entries: list[Entry],
        owed: tuple[list[int], list[int]],
        mapped: tuple[list[int], list[int]] | None = None,
        *,
        fenced: bool,
    ) -> Launch:
        """Submit a step: table writes and inputs on the schedule stream, the rest after them.

        owed: (places, pages) that the table must name before this step. mapped: (pages of the full
        pool, pages of the window pool) to which the map must lead them; None: there is no map.
        """
        mode = self._mode(entries)
        mapped = mapped or ([], [])
        words = (SAMPLING_COLUMNS + 4) * len(entries) + 2 * len(owed[0]) + 2 * len(mapped[0])
        words += sum(entry.tokens for entry in entries)
        block = Block(words, self._device)
        places, pages, full, swa = map(block.integers, (*owed, *mapped))
        inputs, sampling = self._inputs(mode, entries, block)
        block.ship(self._staging)
        if owed[0]:
            self._writes.append(self._shared.write_pages(places, pages))
        if mapped[0]:
            self._writes.append(self._shared.write_map(full, swa))
        drafted = self._limits.drafted if mode is ForwardMode.TARGET_VERIFY else None
        launch = Launch(
            mode=mode,
            entries=entries,
            max_seq_len=max(entry.bound for entry in entries),
            inputs=inputs,
            sampling=sampling,
            writes=self._writes.copy(),
            block=block.tensor,
            result=room(self._device, len(entries), block.tensor.dtype, drafted),
        )
        self._writes.clear()
        if fenced:
            launch.fence = ReadFence(self._device, mode, forced_coarse=self._forced_coarse)
        self._forward.wait(self._prepared.record(self._schedule))
        launch.pending = self._forward.submit(self._step.run, launch)
        return launch

    def barrier(self, launch: Launch) -> None:
        """Later work on the schedule stream waits for the launch's fence."""
        assert launch.fence is not None
        self._writes.append(self._schedule.submit(launch.fence.wait, self._schedule))

    def collect(self, launch: Launch) -> list[Found] | None:
        """Wait for the launch's results: what came of each entry; None if the step failed.

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
            return None
        assert launch.result is not None
        return read(launch.result)

    def _inputs(
        self, mode: ForwardMode, entries: list[Entry], block: Block
    ) -> tuple[StepInputs, SamplingBatch]:
        if mode.is_prefill:
            inputs = _extend_inputs(entries, block)
            if self._limits.drafted:
                inputs = attrs.evolve(inputs, follows=_follows(entries, block))
            return inputs, _sampling(entries, block)
        # The same requests decode step after step: what describes them crosses once.
        of = [(entry.request.id, entry.row, entry.end) for entry in entries]
        if self._decode_inputs is None or of != self._decode_of:
            rows = block.integers([entry.row for entry in entries])
            inputs = StepInputs(rows, None, None, None)
            if self._limits.drafted:
                inputs = attrs.evolve(inputs, ends=block.integers([e.end for e in entries]))
            self._decode_of, self._decode_inputs = of, (inputs, _sampling(entries, block))
        return self._decode_inputs

    def _mode(self, entries: list[Entry]) -> ForwardMode:
        """If every request goes on by a token from the relay, a decode; MIXED if only some do.

        Nothing is drafted in a mixed step.
        """
        decodes = [entry.start is None for entry in entries]
        if all(decodes):
            return self._limits.decode_mode
        return ForwardMode.MIXED if any(decodes) else ForwardMode.EXTEND


def _follows(entries: list[Entry], block: Block) -> torch.Tensor:
    """[B] i64: the prompt's token behind each chunk; -1 where a sampled one follows."""
    follows = []
    for entry in entries:
        end = None if entry.start is None else entry.start + entry.tokens
        ids = entry.request.prefill_ids
        follows.append(-1 if end is None or end >= len(ids) else ids[end])
    return block.integers(follows)


def _extend_inputs(entries: list[Entry], block: Block) -> StepInputs:
    tokens = array("q")
    for entry in entries:
        if entry.start is None:
            tokens.append(-1)
        else:
            tokens.extend(entry.request.prefill_ids[entry.start : entry.start + entry.tokens])
    starts = [-1 if entry.start is None else entry.start for entry in entries]
    return StepInputs(
        rows=block.integers([entry.row for entry in entries]),
        prefixes=block.integers(starts),
        lens=block.integers([entry.tokens for entry in entries]),
        tokens=block.integers(tokens),
    )


def _sampling(entries: list[Entry], block: Block) -> SamplingBatch:
    params = [entry.request.params for entry in entries]
    return SamplingBatch.build(params, [entry.request.seed for entry in entries], block.column)
