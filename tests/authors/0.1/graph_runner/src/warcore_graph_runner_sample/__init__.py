"""Sample: each captured step is one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from warcore import ForwardMode, GraphKind, GraphRunner

if TYPE_CHECKING:
    import torch
    from warcore import Bucket, ForwardBatch, Graph, RunnerContext


class Sample(GraphRunner):
    """Captures decodes whole, marker included."""

    modes: ClassVar[frozenset[ForwardMode]] = frozenset({ForwardMode.DECODE})
    kind: ClassVar[GraphKind] = GraphKind.UNBROKEN

    def __init__(self, ctx: RunnerContext) -> None:
        """Nothing is captured yet."""
        super().__init__(ctx)
        self.captured: dict[Bucket, tuple[Graph, torch.Tensor]] = {}

    def capture(self, bucket: Bucket, view: ForwardBatch) -> None:
        """Record the whole step, and hand it the marker."""
        graph = self.ctx.graph()
        output = graph.capture(lambda: self.ctx.step(view, self.ctx.marker))
        self.captured[bucket] = graph, output

    def replay(self, bucket: Bucket) -> torch.Tensor:
        """The static inputs are loaded: launch."""
        graph, output = self.captured[bucket]
        graph.replay()
        return output
