"""Puts an event of its own into the graph, beside the core's marker, and re-arms it."""

from __future__ import annotations

from wrong_plugins.backends_engine.right import Right, device_of

BREAKS = "backend.event_position"
DETECTORS = ("event position",)


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.device = device_of(ctx)
        self.event = self.device.event(external=True)
        self.captured = set()

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        if batch.bucket in self.captured:
            self.event.rearm()

    def init_forward_metadata_in_graph(self, batch):
        if self.device.capturing:
            self.event.record()
            self.captured.add(batch.bucket)
