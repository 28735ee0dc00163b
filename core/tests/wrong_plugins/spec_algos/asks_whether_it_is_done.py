"""Puts its draft together on another stream, and goes on without it if that takes too long."""

from __future__ import annotations

from wrong_plugins.spec_algos.notes_beside_the_forward import schedule_of
from wrong_plugins.spec_algos.remembers import Remembers

BREAKS = "spec_algo.schedules"
DETECTORS = ("seeded schedules",)


class Plugin(Remembers):
    def draft(self, batch):
        pending = schedule_of(self).submit(int)
        drafted = super().draft(batch)
        if not pending.done:
            batch.tokens.zero_()
        return drafted
