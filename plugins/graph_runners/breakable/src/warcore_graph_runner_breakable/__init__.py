"""Graph segments with an eager break at each attention call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore import ForwardMode, GraphKind, GraphRunner

if TYPE_CHECKING:
    from warcore import Bucket, ForwardBatch, Graph, Output, RunnerContext

__all__ = ["Breakable"]

MODES: Final = frozenset(
    {
        ForwardMode.EXTEND,
        ForwardMode.DECODE,
        ForwardMode.TARGET_VERIFY,
        ForwardMode.DRAFT_EXTEND,
    }
)


class Breakable(GraphRunner):
    """Captures a step around its attention, which runs eagerly in each replay.

    For backends whose attention cannot be captured, or does better with host work of its own. The
    marker lies in the first segment, behind the in-graph metadata: what a backend reads in a later
    one is not covered, and it must vote POST_REPLAY.
    """

    modes = MODES
    kind = GraphKind.BREAKABLE

    def __init__(self, ctx: RunnerContext) -> None:
        super().__init__(ctx)
        self._captured: dict[Bucket, tuple[Graph, Output]] = {}

    def capture(self, bucket: Bucket, view: ForwardBatch) -> None:
        """Record the step with its marker, and a break in place of each attention call."""
        graph = self.ctx.graph()
        output = graph.capture(lambda: self.ctx.step(view, self.ctx.marker, graph.outside))
        self._captured[bucket] = graph, output

    def replay(self, bucket: Bucket) -> Output:
        """The segments and the breaks between them, in order."""
        graph, output = self._captured[bucket]
        graph.replay()
        return output
