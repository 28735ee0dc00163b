"""Lets each draft runner read ahead, and says what remains."""

from __future__ import annotations

from warcore import SharedReadEnds, Stager

BREAKS = "stager.nothing"


class Right(Stager):
    @classmethod
    def why_not(cls, algorithm):
        return [] if algorithm.later_prefill_reader else ["no draft of it reads after prefills"]

    def stage(self, batch):
        # Each of them, also behind one that has more to read.
        return False not in [self.ahead(runner, batch) for runner in self.ctx.drafts]

    def ahead(self, runner, batch):
        """Whether nothing of `runner` remains."""
        return runner.stage(batch) is SharedReadEnds.PRE_REPLAY


Plugin = Right
