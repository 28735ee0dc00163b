"""Records where it takes its reads to have ended, in place of leaving that to the core."""

from __future__ import annotations

from wrong_plugins.backends_engine.right import Right, device_of

BREAKS = "backend.event_position"
DETECTORS = ("event position",)


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.event = device_of(ctx).event()

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        self.event.record()
