"""Records its marker itself, and does not think of a device that has none."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.without_a_marker"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.first = ctx.marker.generation
