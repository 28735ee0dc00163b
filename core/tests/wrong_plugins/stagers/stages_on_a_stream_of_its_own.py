"""Stages on a stream of its own, which nobody waits for."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.races"
DETECTORS = ("happens-before",)


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.stream = ctx.target._device.stream("ahead")
        self.answers = []

    def stage(self, batch):
        self.stream.submit(self.on_its_own, batch)
        return self.answers[-1]

    def on_its_own(self, batch):
        self.answers.append(super().stage(batch))
