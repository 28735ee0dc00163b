"""Lets the schedule stream take note of what was accepted, and waits for nothing."""

from __future__ import annotations

from wrong_plugins.spec_algos.remembers import Remembers

BREAKS = "spec_algo.relay_only"
DETECTORS = ("happens-before",)


def schedule_of(algorithm):
    """The core's stream: an author on CUDA has one of his own in its place."""
    streams = algorithm.ctx.target._device.streams
    return next(stream for stream in streams if stream.name == "schedule")


class Plugin(Remembers):
    def draft_extend(self, batch, accepted):
        schedule_of(self).submit(self.note, batch, accepted)
