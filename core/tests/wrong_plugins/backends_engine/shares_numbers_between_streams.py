"""Leaves a number in Python for work of another stream, and takes it before it is there."""

from __future__ import annotations

from wrong_plugins.backends_engine.right import Shortened, device_of

BREAKS = "backend.schedules"
DETECTORS = ("seeded schedules",)


class Plugin(Shortened):
    planned = 0

    def __init__(self, ctx):
        super().__init__(ctx)
        self.stream = device_of(ctx).stream("plan")

    def longest(self, batch):
        self.stream.submit(self.plan, batch.max_seq_len)
        return self.planned

    def plan(self, longest):
        self.planned = longest
