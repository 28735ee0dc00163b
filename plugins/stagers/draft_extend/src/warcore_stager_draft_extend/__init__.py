"""DraftExtend, a stager for warcore: draft runners read ahead of the prefill that they follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore import SharedReadEnds, Stager

if TYPE_CHECKING:
    from warcore import ForwardBatch, SpecAlgorithm

__all__ = ["DraftExtend"]


class DraftExtend(Stager):
    """Lets every draft runner do the reading part of its prefill before the target publishes.

    What it reads goes to memory of the draft's backend, and the draft's own prefill, later in the
    step, finds it there.
    """

    @classmethod
    def why_not(cls, algorithm: type[SpecAlgorithm]) -> list[str]:
        """There must be somebody who reads later."""
        if algorithm.later_prefill_reader:
            return []
        return [f"{algorithm.__name__} reads nothing after a prefill: there is nothing to stage"]

    def stage(self, batch: ForwardBatch) -> bool:
        """Whether every draft has read all that it will; one that has not costs the overlap."""
        remaining = [draft.stage(batch) for draft in self.ctx.drafts]
        return bool(remaining) and all(end is SharedReadEnds.PRE_REPLAY for end in remaining)
