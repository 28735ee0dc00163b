"""Reads the page table on a stream of its own, which nobody waits for."""

from __future__ import annotations

from wrong_plugins.backends_engine.right import Right, device_of

BREAKS = "backend.races"
DETECTORS = ("happens-before",)


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.stream = device_of(ctx).stream("plan")

    def init_forward_metadata_out_graph(self, batch):
        self.stream.submit(self._gather, batch)
