"""Puts its marker before the in-graph metadata."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Elsewhere

BREAKS = "graph_runner.marker"
DETECTORS = ("poison",)


class Plugin(Elsewhere):
    def record(self, view):
        if self.moved is not None:
            self.ctx.marker.record()
        return self.ctx.step(view, self.moved)
