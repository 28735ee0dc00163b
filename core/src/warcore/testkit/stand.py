"""Stand: a backend in a real ModelRunner, on memory that can be watched, closed and overwritten."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from warcore.backend import BackendContext
from warcore.batch import Bucket, ForwardBatch
from warcore.capturing import build_graph_runner, capture
from warcore.contract import ForwardMode, GraphKind
from warcore.device import EventRing, open_device
from warcore.errors import blame
from warcore.hooks import read_scope
from warcore.options import Chosen
from warcore.runner import PublishingRunner
from warcore.scope import EngineScope
from warcore.shared import SharedBuffers
from warcore.statics import Statics
from warcore.testkit.attending import Attending
from warcore.testkit.cell import BUCKETS, CONTEXT, DRAFTED, ROWS
from warcore.testkit.endingfence import EndingFence
from warcore.testkit.inorder import AroundMarker, Captured, Held
from warcore.testkit.memory import scattered_map, scattered_slots, spec_of, unowned_pool
from warcore.testkit.outcome import Unproven
from warcore.testkit.recorders import Recording, RecordingSegments
from warcore.testkit.several import Several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from warcore.device import Observer
    from warcore.fence import ReadFence
    from warcore.graphs import GraphRunner
    from warcore.testkit.cell import Cell, Shape
    from warcore.testkit.endingfence import End, Hold
    from warcore.testkit.guard import PageGuard

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
        self._graph_runner = runner or (
            Recording if graph is GraphKind.UNBROKEN else RecordingSegments
        )
        self._runner_options = (
            self._graph_runner.Options() if runner_options is None else runner_options
        )
        if guard is not None and device != "host":
            raise Unproven(f"the page guard needs the host device, and this is {device}")
        self.device = open_device(device, "inline")
        self.recorders: list[GraphRunner] = []
        """The graph runners that were built."""
        # Everywhere, as CUDA has to: what a first run leaves behind is no part of the graph.
        self.device.warms_up = True  # type: ignore[misc]
        if guard is not None:
            self.device.memory = guard.allocate  # type: ignore[attr-defined]
        self._watchers: tuple[Observer, ...] = () if guard is None else (guard.whereabouts,)
        self.shape = shape
        self.graph = graph
        self._options = cls.Options() if options is None else options
        self._schedule = self.device.stream("schedule")
        self._forward = self.device.stream("forward")
        self.model = Attending(shape, ROWS, self.device.torch_device)
        windows = [window for window in shape.windows if window is not None]
        mapped = bool(windows) and cls.window_pool
        self._shared = SharedBuffers(
            self.device,
            self._schedule,
            rows=ROWS,
            context=CONTEXT,
            page_size=shape.page_size,
            mapped=ROWS * -(-CONTEXT // shape.page_size) if mapped else None,
        )
        self.table = self._shared.tables.req_to_token
        width = self.table.shape[1]
        self.slots = scattered_slots(shape.page_size, ROWS, width)
        """[rows + 1, context] i64: the slot of each position, as the table has it."""
        self.map: torch.Tensor | None = None
        """[slots] i64: where layers with a window keep what others keep in a slot; None: there."""
        if self._shared.tables.full_to_swa is not None:
            self.map = scattered_map(shape.page_size, ROWS, width)
            self._longest = max(windows)
        self.around: AroundMarker | None = None
        """What lies around the markers of captures on a device whose replays are one launch."""
        if legible:
            self.device.keeps_graphs = True  # type: ignore[attr-defined]
        elif self.one_launch:
            self.around = AroundMarker(self.device, self._shared.writer)
            self._forward.submit(self.around.warm_up).result()
        self.write_table(self.slots)
        self.spec = spec_of(shape, self.device.torch_device)
        self.kv = unowned_pool(cls, self.spec, len(self.model.layers), ROWS, width)
        with blame(f"backend {cls.__name__}", "__init__"):
            self.backend = self._forward.submit(cls, self._context(graph)).result()
        self.scope = read_scope(cls.__name__, self.backend)
        self._runners = {role: self._runner(role) for role in ("target", "draft")}
        if graph is not GraphKind.NONE:
            for role, modes in (
                ("target", (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.EXTEND)),
                ("draft", (ForwardMode.DRAFT_EXTEND,)),
            ):
                self._capture(self._runners[role], modes)

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

    @property
    def shared(self) -> dict[str, torch.Tensor]:
        """The readers' views of all shared tables, by name."""
        found, swa = {"req_to_token": self.table}, self._shared.tables.full_to_swa
        return found if swa is None else found | {"full_to_swa": swa}

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
        if self.map is not None:
            self.write_map(self.map_for(batch))
        if hold is None and end is not None and self.around is not None:
            hold = Held(self.around, self.device, self._schedule, end)
        role = "draft" if batch.mode is ForwardMode.DRAFT_EXTEND else "target"
        runner = self._runners[role]
        fence = EndingFence(self.device, batch.mode, end or _nothing, hold)
        fence.expect(runner, batch.mode)
        runner.lend(fence)

        def step() -> torch.Tensor:
            return runner.execute(batch).logits.clone()

        with self.device.watched_by(Several(fence, *self._watchers)):
            pending = self._forward.submit(step)
        if hold is not None:
            hold.over()
        fence.close(self.device.event().record(self._forward), pending.error)
        fence.wait(self._schedule)
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
        hold = None if self.around is None else Captured(self.around, slots)
        try:
            return self.run(batch, partial(self.write_table, slots), hold=hold)
        finally:
            self.device.synchronize()
            self.write_table(self.slots)

    @property
    def replays(self) -> int:
        """How many steps were replayed so far."""
        captures = [r.captures for r in self._runners.values() if r.captures is not None]
        return sum(each.facts()["replays"] for each in captures)

    def marked(self, batch: ForwardBatch) -> bool:
        """Whether the captured step that holds `batch` has a marker."""
        runner = self._runners["draft" if batch.mode is ForwardMode.DRAFT_EXTEND else "target"]
        captures = runner.captures
        bucket = None if captures is None else captures.bucket_for(batch)
        return captures is not None and bucket is not None and captures.marker(bucket) is not None

    def prepare(self, cell: Cell) -> None:
        """Compute what lies before the step: every prefix that is not empty."""
        rows = [place + 1 for place, prefix in enumerate(cell.prefixes) if prefix]
        lens = tuple(cell.prefixes[row - 1] for row in rows)
        if rows:
            self.run(self.batch(ForwardMode.EXTEND, rows, (0,) * len(rows), lens))

    def steps(self, cell: Cell) -> list[ForwardBatch]:
        """The step of a cell, and the one after it."""
        rows = [place + 1 for place in range(len(cell.lens))]
        after = tuple(p + n for p, n in zip(cell.prefixes, cell.lens, strict=True))
        return [
            self.batch(cell.mode, rows, prefixes, cell.lens) for prefixes in (cell.prefixes, after)
        ]

    def batch(
        self, mode: ForwardMode, rows: list[int], prefixes: tuple[int, ...], lens: tuple[int, ...]
    ) -> ForwardBatch:
        """A step of `rows` with `lens` new tokens after `prefixes`."""
        place = partial(torch.tensor, device=self.device.torch_device)
        spans = list(zip(rows, prefixes, lens, strict=True))
        positions = [p + i for _, p, n in spans for i in range(n)]
        row_of = [row for row, _, n in spans for _ in range(n)]
        q_start = torch.tensor([0, *lens]).cumsum(0).to(self.device.torch_device)
        mask = None
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
            out_slots=self.slots[row_of, positions].to(self.device.torch_device),
            max_seq_len=max(p + n for _, p, n in spans),
            extend_lens=lens if mode.is_prefill else (),
            logits_at=q_start[1:] - 1 if mode.is_prefill else None,
            tree_mask=mask,
        )

    # ---- memory ----------------------------------------------------------------------------------

    def write_table(self, slots: torch.Tensor) -> None:
        """Overwrite the shared table, [rows + 1, context], as the scheduler would."""
        with torch.inference_mode():
            self._shared.writer.copy_(slots)
            if self.around is not None:
                # So that no marker that is passed later puts back what was there before.
                self.around.choose(slots)

    def slots_in(self, layer: int) -> torch.Tensor:
        """[rows + 1, context] i64: the slot of each position in the pool of a layer."""
        if self.map is None or self.shape.windows[layer] is None:
            return self.slots
        return self.map[self.slots]

    def map_for(self, batch: ForwardBatch) -> torch.Tensor:
        """The map as a scheduler has it in this step: behind the windows it leads to page 0."""
        assert self.map is not None
        made, size = self.map.clone().view(-1, self.shape.page_size), self.shape.page_size
        counts = batch.q_start[1:] - batch.q_start[:-1]
        firsts = (batch.seq_lens - counts).tolist()
        for row, first in zip(batch.rows.tolist(), firsts, strict=True):
            behind = max(first - self._longest + 1, 0) // size * size
            made[self.slots[row, :behind:size] // size] = torch.arange(size)
        return made.flatten()

    def write_map(self, slots: torch.Tensor) -> None:
        """Overwrite the shared map, [slots], as the scheduler would."""
        assert self._shared.map_writer is not None
        with torch.inference_mode():
            self._shared.map_writer.copy_(slots)

    # ---- wiring ----------------------------------------------------------------------------------

    def _context(self, graph: GraphKind) -> BackendContext:
        statics = Statics(self.device, self._forward)
        return BackendContext(
            spec=self.spec,
            max_batch=ROWS,
            max_tokens=ROWS * CONTEXT,
            shared=self._shared.tables,
            kv=self.kv,
            graph=graph,
            options=self._options,
            static=statics.static,
            stage=statics.stage,
        )

    def _runner(self, role: str) -> PublishingRunner:
        model: Any = self.model
        return PublishingRunner(
            self.device,
            model,
            self.backend,
            self.scope,
            EngineScope(),
            ring=EventRing(self.device),
            role=role,
        )

    def _capture(self, runner: PublishingRunner, modes: tuple[ForwardMode, ...]) -> None:
        cls = self._graph_runner
        buckets = []
        for mode in modes:
            if mode not in cls.modes:
                continue
            width = 1 if mode is ForwardMode.DECODE else DRAFTED
            shapes = [(rows, rows * width) for rows in BUCKETS]
            for rows, tokens in [(1, 8)] if mode is ForwardMode.EXTEND else shapes:
                batch = self.batch(
                    mode, list(range(1, rows + 1)), (0,) * rows, (tokens // rows,) * rows
                )
                key = self.backend.graph_key(batch)
                if key is not None:
                    buckets.append(Bucket(mode, rows, tokens, CONTEXT, key))
        buckets.sort(key=lambda bucket: -bucket.tokens)
        if not buckets:
            return
        runner.buckets = tuple(buckets)
        build_graph_runner(
            Chosen(cls.__name__, self._built, self._runner_options),
            runner,
            device=self.device,
            forward=self._forward,
            spec=self.spec,
            statics=Statics(self.device, self._forward),
        )
        capture([runner], self._forward)

    def _built(self, context: Any) -> GraphRunner:
        self.recorders.append(self._graph_runner(context))
        return self.recorders[-1]


def _nothing() -> None:
    """Nobody asks where the reads end."""
