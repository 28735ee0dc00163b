"""Loads its inputs on a stream of its own, which nobody waits for."""

from __future__ import annotations

import attrs
from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.in_an_engine"
DETECTORS = ("happens-before",)


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.stream = ctx.graph()._device.stream("load")

    def load(self, batch, bucket):
        if bucket not in self.captured:
            return super().load(batch, bucket)
        self.stream.submit(super().load, batch, bucket)
        return attrs.evolve(self._inputs._views[bucket], size=batch.size)
