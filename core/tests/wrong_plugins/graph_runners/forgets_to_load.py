"""Loads its static inputs once, before the capture."""

from __future__ import annotations

import attrs
from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.replays_equal_eager"


class Plugin(Right):
    def load(self, batch, bucket):
        if bucket not in self.captured:
            return super().load(batch, bucket)
        return attrs.evolve(self._inputs._views[bucket], size=batch.size)
