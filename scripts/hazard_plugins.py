"""Plugins that are late in one way each, for the pictures: they take time and compute nothing."""

from __future__ import annotations

from typing import Any, Final

import torch
from timeline import METADATA, Timed, note

from warcore import (
    Draft,
    ForwardMode,
    GraphKind,
    GraphRunner,
    SharedReadEnds,
    SpecAlgorithm,
    Stager,
)

SHORT: Final = 48.0
"""Microseconds of a small access."""
LARGE: Final = 120.0
"""Microseconds of one that is large."""
LONG: Final = 4
"""Tokens from which on a request is long."""


class InTheLayers(Timed):
    """Its copy is a view: every layer reads the table through it."""

    def init_forward_metadata_out_graph(self, batch: Any) -> None:  # noqa: ARG002
        self.device.spend(METADATA)

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:
        self.reads(batch, SHORT)
        return super().forward(q, k, v, layer, batch)


class InTheLastLayer(Timed):
    """Copies its rows in time, and looks once more in its last layer."""

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:
        output = super().forward(q, k, v, layer, batch)
        if self.is_last(layer) and self.is_late(batch):
            self.reads(batch, SHORT)
        return output

    def is_last(self, layer: Any) -> bool:
        return bool(layer.index == len(self.ctx.kv) - 1)

    def is_late(self, batch: Any) -> bool:  # noqa: ARG002
        return True


class WhenLong(InTheLastLayer):
    """Looks once more where a request is long."""

    def is_late(self, batch: Any) -> bool:
        return bool(batch.max_seq_len > LONG)


class InTheGraph(Timed):
    """Gathers in the graph's metadata; says that it has done so before the replay."""

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        pass

    def init_forward_metadata_in_graph(self, batch: Any) -> None:
        self.reads(batch, LARGE)


class SaysInReplay(InTheGraph):
    """The same, declared as it is."""

    def shared_read_ends(self, forward_mode: object) -> SharedReadEnds:  # noqa: ARG002
        return SharedReadEnds.IN_REPLAY


class SaysPostReplay(Timed):
    """Reads before the replay, and declares the end of the step out of caution."""

    def shared_read_ends(self, forward_mode: object) -> SharedReadEnds:  # noqa: ARG002
        return SharedReadEnds.POST_REPLAY


class Wrapper(InTheLayers):
    """What it wraps votes POST_REPLAY; its own answer is the one that it inherits."""

    def shared_read_ends(self, forward_mode: Any) -> SharedReadEnds:
        return super(Timed, self).shared_read_ends(forward_mode)


class Snapshot(Timed):
    """Says of each prefill that all is gathered, and gathers in the first layer."""

    def shared_read_ends(self, forward_mode: Any) -> SharedReadEnds:
        ends = SharedReadEnds
        return ends.PRE_REPLAY if forward_mode is ForwardMode.DECODE else ends.UNKNOWN

    def prepare_prefill_shared_read_snapshot(
        self,
        forward_batch: Any,  # noqa: ARG002
        num_qo_tokens: int,  # noqa: ARG002
    ) -> SharedReadEnds:
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        if batch.mode is not ForwardMode.EXTEND:
            super().init_forward_metadata_out_graph(batch)

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:
        if batch.mode is ForwardMode.EXTEND and layer.index == 0:
            self.reads(batch, LARGE)
        return super().forward(q, k, v, layer, batch)


class MakesLengths(Timed):
    """Ends a step with a result that the next one needs, as a verify does."""

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:
        output = super().forward(q, k, v, layer, batch)
        if layer.index == len(self.ctx.kv) - 1:
            self.is_busy("make", SHORT)
        return output


class Normalises(InTheLastLayer):
    """Tidies the table up in place when it is done with it."""

    def reads(self, batch: Any, us: float) -> None:
        late = us == SHORT
        if late:
            self.ctx.shared.req_to_token[0, 0] = 0
            self.is_busy("touch", us)
        else:
            super().reads(batch, us)


class OwnBuffer(Timed):
    """Copies metadata from host memory of its own, which it has no fence for."""

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        self.is_busy("sends", LARGE)
        super().init_forward_metadata_out_graph(batch)


class OwnStream(Timed):
    """Gathers on a stream of its own, for which nobody waits."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self._plan = self.device.stream("plan")

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        self._plan.submit(self.reads, batch, LARGE)
        self.device.spend(METADATA)


class Rebinds(Timed):
    """Puts each step's rows into a new tensor; the graph has the address of the first."""

    def forward(self, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> Any:
        if layer.index == 0:
            self.is_busy("stale", METADATA)
        return super().forward(q, k, v, layer, batch)


class Keeps(Timed):
    """Looks its rows up when others come, and goes by what it found as long as they stay."""

    rows: Any = None

    def init_forward_metadata_out_graph(self, batch: Any) -> None:
        rows = batch.rows.tolist()
        if rows == self.rows:
            self.is_busy("stale", SHORT)
        else:
            super().init_forward_metadata_out_graph(batch)
        self.rows = rows


class Unbroken(GraphRunner):
    """One graph for each decode step."""

    modes = frozenset({ForwardMode.DECODE})
    kind = GraphKind.UNBROKEN

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self._captured: dict[Any, Any] = {}

    def capture(self, bucket: Any, view: Any) -> None:
        graph = self.ctx.graph()
        self._captured[bucket] = graph, graph.capture(lambda: self.step(view))

    def step(self, view: Any) -> Any:
        return self.ctx.step(view, self.ctx.marker)

    def replay(self, bucket: Any) -> Any:
        graph, output = self._captured[bucket]
        graph.replay()
        return output


class MarksFirst(Unbroken):
    """Puts its marker before the in-graph metadata, and hands over a stand-in that does nothing."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self._stand_in = StandIn(ctx.marker)

    def step(self, view: Any) -> Any:
        self.ctx.marker.record()
        return self.ctx.step(view, self._stand_in)

    def marker(self, bucket: Any) -> Any:  # noqa: ARG002
        return self._stand_in


class StandIn:
    """A marker that is in the graph already."""

    def __init__(self, marker: Any) -> None:
        self._marker = marker

    def record(self) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._marker, name)


class Drafts(SpecAlgorithm):
    """Drafts with a model of its own, which takes in every prompt behind the target."""

    default_tokens = 1

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self._runner = ctx.make_runner(ctx.model)

    def draft(self, batch: Any) -> Draft:
        return Draft(self._runner.execute(batch).logits.argmax(-1, keepdim=True))

    def draft_extend(self, batch: Any, accepted: Any) -> None:  # noqa: ARG002
        self._runner.execute(batch)

    def last_shared_read_runner(self, forward_batch: Any) -> Any:  # noqa: ARG002
        return self._runner


class SaysTrue(Stager):
    """Copies nothing ahead, and says that nothing remains."""

    def stage(self, batch: Any) -> bool:  # noqa: ARG002
        return True


class LooksBehind(SpecAlgorithm):
    """Looks its rows up once more when the target has verified; names nobody, and has no vote."""

    default_tokens = 1
    later_prefill_reader = False

    def draft(self, batch: Any) -> Draft:
        return Draft(batch.tokens[:, None])

    def draft_extend(self, batch: Any, accepted: Any) -> None:  # noqa: ARG002
        target = self.ctx.target
        device, table = target._device, target._backend.ctx.shared.req_to_token  # noqa: SLF001
        if batch.mode is ForwardMode.DRAFT_EXTEND:
            torch.index_select(table, 0, batch.rows)
            note(device, "read")
            device.spend(SHORT)
