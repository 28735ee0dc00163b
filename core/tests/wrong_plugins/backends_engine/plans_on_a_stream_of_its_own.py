"""Gathers on a stream of its own, which waits for the forward stream; and that one waits for it."""

from __future__ import annotations

from wrong_plugins.backends_engine import gathers_on_a_stream_of_its_own
from wrong_plugins.backends_engine.right import device_of

BREAKS = "backend.nothing"


class Plugin(gathers_on_a_stream_of_its_own.Plugin):
    def init_forward_metadata_out_graph(self, batch):
        device = device_of(self.ctx)
        forward = device.current_stream()
        self.stream.wait(device.event().record(forward))
        self.stream.submit(self._gather, batch)
        forward.wait(device.event().record(self.stream))
