"""Records an event on the schedule stream in the middle of a step: the next write seems done."""

from __future__ import annotations

from wrong_plugins.backends_engine import records_an_event_of_its_own
from wrong_plugins.backends_engine.right import Right, device_of

BREAKS = "backend.event_position"
DETECTORS = ("event position",)


class Plugin(records_an_event_of_its_own.Plugin):
    def init_forward_metadata_out_graph(self, batch):
        Right.init_forward_metadata_out_graph(self, batch)
        (schedule,) = (s for s in device_of(self.ctx).streams if s.name == "schedule")
        self.event.record(schedule)
