"""Stand: a backend in a real ModelRunner, on memory that can be watched, closed and overwritten."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from warcore.batch import ForwardBatch
from warcore.contract import ForwardMode, GraphKind
from warcore.device import open_device
from warcore.hooks import read_scope
from warcore.testkit.detectors.endingfence import EndingFence
from warcore.testkit.detectors.several import Several
from warcore.testkit.detectors.used import note
from warcore.testkit.outcome import Unproven
from warcore.testkit.stands.attending import Attending
from warcore.testkit.stands.cell import DRAFTED
from warcore.testkit.stands.inorder import Captured, Held
from warcore.testkit.stands.memory import spec_of, unowned_pool
from warcore.testkit.stands.standwiring import CAPTURED, build_captures, built_backend, model_runner
from warcore.testkit.stands.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from warcore.device import Observer
    from warcore.fence import ReadFence
    from warcore.graphs import GraphRunner
    from warcore.runner import PublishingRunner
    from warcore.testkit.detectors.endingfence import End, Hold
    from warcore.testkit.detectors.guard import PageGuard
    from warcore.testkit.stands.cell import Cell, Shape

TREE = ((True, False, False), (True, True, False), (True, False, True))
"""What the drafts of a request see of one another: the last two are branches of one stem."""


class Stand:
    """One backend, of one shape, under one kind of graph. A context manager.

    All positions of all rows have slots, in pages that lie in no order; slots that no step has
    written hold NaN. `guard`: whose pages the shared buffers live in; None: in ordinary memory.
    """

    def __init__(
        self,
        cls: Any,
        shape: Shape,
        graph: GraphKind,
        *,
        device: str = "host",
        options: object = None,
        guard: PageGuard | None = None,
        runner: type[GraphRunner] | None = None,
        runner_options: object = None,
        legible: bool = False,
    ) -> None:
        """runner: the graph runner to use; None: the kit's own.

        legible: captures hold nothing of the kit's and can be read node by node; CUDA only.
        """
        if guard is not None and device != "host":
            raise Unproven(f"the page guard needs the host device, and this is {device}")
        self.device = open_device(device, "inline")
        # Everywhere, as CUDA has to: what a first run leaves behind is no part of the graph.
        self.device.warms_up = True  # type: ignore[misc]
        if guard is not None:
            self.device.memory = guard.allocate  # type: ignore[attr-defined]
        self._watchers: tuple[Observer, ...] = () if guard is None else (guard.whereabouts,)
        self.shape = shape
        self.graph = graph
        self.schedule = self.device.stream("schedule")
        self.forward = self.device.stream("forward")
        self.model = Attending(shape, self.device.torch_device, self.device.phase)
        # A draft keeps whole sequences: the map is the target's.
        mapped = any(shape.windows) and cls.window_pool and shape.role == "target"
        self.tables = Tables(self.device, self.schedule, shape, mapped=mapped)
        if legible:
            self.device.keeps_graphs = True  # type: ignore[attr-defined]
        elif self.one_launch:
            self.tables.surround(self.forward)
        self.tables.write(self.tables.slots)
        self.launches = 0
        """How many steps were run so far, captures apart."""
        self.spec = spec_of(shape, self.device.torch_device)
        width = self.tables.table.shape[1]
        self.kv = unowned_pool(cls, self.spec, len(self.model.layers), shape.rows, width)
        self.backend = built_backend(self, cls, options)
        self.scope = read_scope(cls.__name__, self.backend)
        self.recorders: list[GraphRunner] = []
        """The graph runners that were built."""
        self.runners = {role: model_runner(self, role) for role in CAPTURED[shape.role]}
        """By role."""
        for role in self.runners:
            build_captures(self, role, runner, runner_options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.close()

    @contextmanager
    def watched_by(self, observer: Observer) -> Iterator[None]:
        """Within, `observer` too sees what happens on the device while a step runs."""
        before, self._watchers = self._watchers, (*self._watchers, observer)
        try:
            yield
        finally:
            self._watchers = before

    @property
    def one_launch(self) -> bool:
        """Whether the host cannot come between the marker of a replay and what follows."""
        return self.device.name == "cuda"

    # ---- a step ----------------------------------------------------------------------------------

    def run(
        self, batch: ForwardBatch, end: End | None = None, *, hold: Hold | None = None
    ) -> tuple[torch.Tensor, ReadFence]:
        """One launch; its output, [tokens or requests, width], and its fence, waited for.

        end: called once where the backend's declared reads end; never if the step is coarse. What
        it does on the device comes before all that follows: on the forward stream, or, while a
        CUDA replay is held at its marker, on the schedule stream. hold: what to do at the marker of
        a replay instead. Raises what the backend raises; Unproven if no replay can be held.
        """
        # The batch and the pool were filled on another stream than these.
        self.device.synchronize()
        self.launches += 1
        tables = self.tables
        if tables.map is not None:
            tables.write_map(tables.map_for(batch))
        if hold is None and end is not None and tables.around is not None:
            hold = Held(tables.around, self.device, self.schedule, end)
        runner = self.runner_of(batch.mode)
        fence = EndingFence(self.device, batch.mode, end or _nothing, hold)
        fence.expect(runner, batch.mode)
        runner.lend(fence)

        def step() -> torch.Tensor:
            return runner.execute(batch).logits.clone()

        with self.device.watched_by(Several(fence, *self._watchers)):
            pending = self.forward.submit(step)
        if hold is not None:
            hold.over()
        fence.close(self.device.event().record(self.forward), pending.error)
        fence.wait(self.schedule)
        output: torch.Tensor = pending.result()
        self.device.synchronize()
        return output, fence

    def run_overwritten(
        self, batch: ForwardBatch, slots: torch.Tensor
    ) -> tuple[torch.Tensor, ReadFence]:
        """One launch whose table holds `slots`, [rows + 1, context], from the declared end on.

        In the order of the forward stream, so that no luck is in it: on CUDA the overwrite of a
        step with a marker is a node of the graph. The table is put back.
        """
        note("in-order poison")
        tables = self.tables
        hold = None if tables.around is None else Captured(tables.around, slots)
        try:
            return self.run(batch, partial(tables.write, slots), hold=hold)
        finally:
            self.device.synchronize()
            tables.write(tables.slots)

    def runner_of(self, mode: ForwardMode) -> PublishingRunner:
        """Who runs the steps of `mode`."""
        return self.runners["draft" if mode is ForwardMode.DRAFT_EXTEND else self.shape.role]

    @property
    def replays(self) -> int:
        """How many steps were replayed so far."""
        captures = [r.captures for r in self.runners.values() if r.captures is not None]
        return sum(each.facts()["replays"] for each in captures)

    def marked(self, batch: ForwardBatch) -> bool:
        """Whether the captured step that holds `batch` has a marker."""
        captures = self.runner_of(batch.mode).captures
        bucket = None if captures is None else captures.bucket_for(batch)
        return captures is not None and bucket is not None and captures.marker(bucket) is not None

    def prepare(self, cell: Cell) -> None:
        """Compute what lies before the step: every prefix that is not empty."""
        rows = [place + 1 for place, prefix in enumerate(cell.prefixes) if prefix]
        lens = tuple(cell.prefixes[row - 1] for row in rows)
        if rows:
            self.run(self.batch(ForwardMode.EXTEND, rows, (0,) * len(rows), lens))

    def move_pages(self) -> None:
        """Give every row other pages, which hold what its own held.

        So it is to whoever is handed a row when its request has ended and the next one has it.
        """
        layers = range(len(self.kv))
        before = [self._pages_in(layer) for layer in layers]
        self.tables.move()
        for layer, old in zip(layers, before, strict=True):
            new = self._pages_in(layer)
            for memory in self.kv[layer].values():
                memory[new] = memory[old]

    def _pages_in(self, layer: int) -> torch.Tensor:
        """The page of each page of each row in the pool of a layer."""
        size = self.shape.page_size
        return (self.tables.slots_in(layer)[1:, ::size] // size).flatten()

    def steps(self, cell: Cell) -> list[ForwardBatch]:
        """The step of a cell, and the one after it."""
        rows = [place + 1 for place in range(len(cell.lens))]
        first = self.batch(cell.mode, rows, cell.prefixes, cell.lens)
        if first.ahead is not None:
            return [first, first.after(first.tokens)]
        after = tuple(p + n for p, n in zip(cell.prefixes, cell.lens, strict=True))
        return [first, self.batch(cell.mode, rows, after, cell.lens)]

    def batch(
        self, mode: ForwardMode, rows: list[int], prefixes: tuple[int, ...], lens: tuple[int, ...]
    ) -> ForwardBatch:
        """A step of `rows` with `lens` new tokens after `prefixes`."""
        place = partial(torch.tensor, device=self.device.torch_device)
        spans = list(zip(rows, prefixes, lens, strict=True))
        positions = [p + i for _, p, n in spans for i in range(n)]
        row_of = [row for row, _, n in spans for _ in range(n)]
        q_start = torch.tensor([0, *lens]).cumsum(0).to(self.device.torch_device)
        mask = ahead = None
        if self.shape.role == "draft" and mode is ForwardMode.DECODE:
            ahead = torch.stack([self.tables.slots[row, p : p + DRAFTED] for row, p, _ in spans])
            ahead = ahead.to(self.device.torch_device)
        if self.shape.tree and mode is ForwardMode.TARGET_VERIFY:
            mask = place(TREE).repeat(len(rows), 1)
        return ForwardBatch(
            mode=mode,
            size=len(rows),
            padded_size=len(rows),
            padded_tokens=len(positions),
            tokens=place([0] * len(positions)),
            rows=place(rows),
            seq_lens=place([p + n for _, p, n in spans]).int(),
            q_start=q_start.int(),
            q_row=place([index for index, (_, _, n) in enumerate(spans) for _ in range(n)]),
            positions=place(positions),
            out_slots=self.tables.slots[row_of, positions].to(self.device.torch_device),
            max_seq_len=max(p + n for _, p, n in spans),
            max_q_len=max(lens),
            extend_lens=lens if mode.is_prefill else (),
            logits_at=q_start[1:] - 1 if mode.is_prefill else None,
            tree_mask=mask,
            ahead=ahead,
        )


def _nothing() -> None:
    """Nobody asks where the reads end."""
