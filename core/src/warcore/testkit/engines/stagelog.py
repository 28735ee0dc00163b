"""StageLog: what a stager answers in a run, and what happens while it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import attrs

from warcore.device import Observer
from warcore.testkit.packages.definitions import with_methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.batch import ForwardBatch
    from warcore.device import Stream, Ticket


@attrs.define(eq=False)
class StageLog(Observer):
    """Of one run, in the order of its calls; inline host devices only."""

    answers: list[object] = attrs.field(factory=list)
    errors: list[Exception] = attrs.field(factory=list)
    batches: list[Any] = attrs.field(factory=list)
    """Weak references to what it was given."""
    instead: Callable[[int], bool | None] = lambda _: None
    """Asked with the number of the call, from 0: an answer in place of the stager's, given after
    its work; None: its own. It may raise."""
    recorded_within: list[str] = attrs.field(factory=list)
    """Events that were recorded while it was at work, if this watches the device."""
    _inside: bool = False

    def of(self, cls: Any) -> Any:
        """The class, written down from here."""

        def prefill_shared_read_stager(stager: Any) -> Any:
            stage = cls.prefill_shared_read_stager(stager)
            return stage and self._noted(stage)

        return with_methods(cls, prefill_shared_read_stager=prefill_shared_read_stager)

    def recorded(self, stream: Stream, ticket: Ticket) -> None:
        """A record of any stream."""
        if self._inside:
            self.recorded_within.append(f"{ticket.event!r} on stream {stream.name}")

    def _noted(self, stage: Callable[[ForwardBatch], object]) -> Callable[[ForwardBatch], object]:
        def noted(batch: ForwardBatch) -> object:
            self.batches.append(ref(batch))
            self._inside = True
            try:
                answer = stage(batch)
            except Exception as error:
                self.errors.append(error)
                raise
            finally:
                self._inside = False
            self.answers.append(answer)
            instead = self.instead(len(self.answers) - 1)
            return answer if instead is None else instead

        return noted
