"""Re-arms its marker before each replay, although the core has."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.order"
DETECTORS = ("event position",)


class Plugin(Right):
    def replay(self, bucket):
        self.ctx.marker and self.ctx.marker.rearm()
        return super().replay(bucket)
