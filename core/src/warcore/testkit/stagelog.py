"""StageLog: what a stager answers in a run, and what happens while it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import attrs

from warcore.testkit.definitions import with_methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.batch import ForwardBatch


@attrs.define(eq=False)
class StageLog:
    """Of one run, in the order of its calls; inline host devices only."""

    answers: list[object] = attrs.field(factory=list)
    errors: list[Exception] = attrs.field(factory=list)
    batches: list[Any] = attrs.field(factory=list)
    """Weak references to what it was given."""
    instead: Callable[[int], bool | None] = lambda _: None
    """Asked with the number of the call, from 0: an answer in place of the stager's, given after
    its work; None: its own. It may raise."""
    inside: bool = False
    """Whether it is at work."""

    def of(self, cls: Any) -> Any:
        """The class, written down from here."""

        def prefill_shared_read_stager(stager: Any) -> Any:
            stage = cls.prefill_shared_read_stager(stager)
            return stage and self._noted(stage)

        return with_methods(cls, prefill_shared_read_stager=prefill_shared_read_stager)

    def _noted(self, stage: Callable[[ForwardBatch], object]) -> Callable[[ForwardBatch], object]:
        def noted(batch: ForwardBatch) -> object:
            self.batches.append(ref(batch))
            self.inside = True
            try:
                answer = stage(batch)
            except Exception as error:
                self.errors.append(error)
                raise
            finally:
                self.inside = False
            self.answers.append(answer)
            instead = self.instead(len(self.answers) - 1)
            return answer if instead is None else instead

        return noted
