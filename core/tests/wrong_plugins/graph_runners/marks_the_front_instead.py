"""Where there is no marker, makes one of its own, at the front of the graph."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Moved, Right

BREAKS = "graph_runner.without_a_marker"
DETECTORS = ("event position",)


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.moved = None
        if ctx.marker is None:
            self.moved = Moved(ctx.graph()._device.event(external=True))

    def record(self, view):
        if self.moved is None:
            return super().record(view)
        self.moved.event.record()
        return self.ctx.step(view, self.moved)

    def marker(self, bucket):
        return self.moved or self.ctx.marker
