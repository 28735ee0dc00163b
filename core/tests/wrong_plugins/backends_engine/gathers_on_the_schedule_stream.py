"""Lets the schedule stream read the page table for it, and does not wait for what it gets."""

from __future__ import annotations

from wrong_plugins.backends_engine.right import Right, device_of

BREAKS = "backend.races"
DETECTORS = ("happens-before",)


class Plugin(Right):
    def init_forward_metadata_out_graph(self, batch):
        (schedule,) = (s for s in device_of(self.ctx).streams if s.name == "schedule")
        schedule.submit(self._gather, batch)
