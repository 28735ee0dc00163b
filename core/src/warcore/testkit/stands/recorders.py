"""The kit's own graph runners: whole steps, and steps broken at attention."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from warcore.contract import ForwardMode, GraphKind
from warcore.graphs import GraphRunner

if TYPE_CHECKING:
    from warcore.batch import Bucket, ForwardBatch
    from warcore.device import Graph
    from warcore.model import Output


class Recording(GraphRunner):
    """The kit's own graph runner: whole steps, or broken at attention."""

    modes = frozenset(ForwardMode) - {ForwardMode.MIXED}

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self._captured: dict[Bucket, tuple[Graph, Output]] = {}

    @property
    def graphs(self) -> dict[Bucket, Graph]:
        """What was captured for each bucket."""
        return {bucket: graph for bucket, (graph, _) in self._captured.items()}

    def capture(self, bucket: Bucket, view: ForwardBatch) -> None:
        graph = self.ctx.graph()
        breaks = (graph.outside,) if self.kind is GraphKind.BREAKABLE else ()
        step = partial(self.ctx.step, view, self.ctx.marker, *breaks)
        self._captured[bucket] = graph, graph.capture(step)

    def replay(self, bucket: Bucket) -> Output:
        graph, output = self._captured[bucket]
        graph.replay()
        return output


class RecordingSegments(Recording):
    """The same, broken at each attention call."""

    kind = GraphKind.BREAKABLE
