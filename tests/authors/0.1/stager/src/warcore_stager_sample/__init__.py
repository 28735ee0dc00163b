"""Sample: each draft runner reads ahead, and what remains is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore import SharedReadEnds, Stager

if TYPE_CHECKING:
    from warcore import ForwardBatch, SpecAlgorithm


class Sample(Stager):
    """Stages every draft runner with the very batch that its prefill will have."""

    @classmethod
    def why_not(cls, algorithm: type[SpecAlgorithm]) -> list[str]:
        """Where no draft reads after prefills there is nothing to stage."""
        return [] if algorithm.later_prefill_reader else ["no draft of it reads after prefills"]

    def stage(self, batch: ForwardBatch) -> bool:
        """True only if nothing of any draft remains; each is staged, whatever the others say."""
        ends = [runner.stage(batch) for runner in self.ctx.drafts]
        return all(end is SharedReadEnds.PRE_REPLAY for end in ends)
