"""Breaks its graphs at each attention call, which is right."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

from warcore import GraphKind

BREAKS = "graph_runner.nothing"


class Plugin(Right):
    kind = GraphKind.BREAKABLE

    def capture(self, bucket, view):
        graph = self.ctx.graph()
        step = self.ctx.step
        output = graph.capture(lambda: step(view, self.ctx.marker, graph.outside))
        self.captured[bucket] = graph, output
