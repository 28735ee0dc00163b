"""One unbroken graph for each captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore import ForwardMode, GraphKind, GraphRunner

if TYPE_CHECKING:
    from warcore import Bucket, ForwardBatch, Graph, Output, RunnerContext

__all__ = ["Full"]

MODES: Final = frozenset(
    {
        ForwardMode.EXTEND,
        ForwardMode.DECODE,
        ForwardMode.TARGET_VERIFY,
        ForwardMode.DRAFT_EXTEND,
    }
)


class Full(GraphRunner):
    """Captures a whole step, from the in-graph metadata to the logits, as one graph."""

    modes = MODES
    kind = GraphKind.UNBROKEN
    default_rank = 10

    def __init__(self, ctx: RunnerContext) -> None:
        super().__init__(ctx)
        self._captured: dict[Bucket, tuple[Graph, Output]] = {}

    def capture(self, bucket: Bucket, view: ForwardBatch) -> None:
        """Record the step with its marker; its output stays where the replays put theirs."""
        graph = self.ctx.graph()
        output = graph.capture(lambda: self.ctx.step(view, self.ctx.marker))
        self._captured[bucket] = graph, output

    def replay(self, bucket: Bucket) -> Output:
        """One launch."""
        graph, output = self._captured[bucket]
        graph.replay()
        return output
