"""Puts its marker behind the layers."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Elsewhere

BREAKS = "graph_runner.marker"
DETECTORS = ("event position",)


class Plugin(Elsewhere):
    def record(self, view):
        output = self.ctx.step(view, self.moved)
        if self.moved is not None:
            self.ctx.marker.record()
        return output
