"""StepLog: what happens in one replayed step, in order, as the fence's tables write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.testkit.runnerstand import captures_of, runner_of
from warcore.testkit.wrapping import Wrapping

if TYPE_CHECKING:
    from typing_extensions import Self

    from warcore.batch import ForwardBatch
    from warcore.device import Pending, Stream, Ticket
    from warcore.fence import Offer
    from warcore.testkit.stand import Stand


class StepLog:
    """Logs the next step of `stand`. A context manager.

    entries: "out_graph", "record" (of whatever event), "rearm" (of the marker), "offer" or
    "offer_none", "replay". A marker that a replay passes is no record.
    """

    def __init__(self, stand: Stand, batch: ForwardBatch) -> None:
        self.entries: list[str] = []
        self._stand = stand
        self._wrapping = Wrapping()
        self._armed: list[Ticket] = []
        self._depth = 0
        captures, runner = captures_of(stand, batch.mode), runner_of(stand, batch.mode)
        bucket = captures.bucket_for(batch)
        if bucket is None:
            return
        self._wrapping.before(runner, "_offer", self._offers)
        self._wrapping.before(captures, "replay", lambda *_: self.entries.append("replay"))
        marker = captures.marker(bucket)
        if marker is not None:
            self._wrapping.after(marker, "rearm", self._rearmed)

    def __enter__(self) -> Self:
        self._before, self._stand.watcher = self._stand.watcher, self
        return self

    def __exit__(self, *exc: object) -> None:
        self._stand.watcher = self._before
        self._wrapping.restore()

    def _offers(self, offer: Offer) -> None:
        self.entries.append("offer_none" if offer.ticket is None else "offer")

    def _rearmed(self, ticket: Ticket) -> None:
        self._armed.append(ticket)
        self.entries.append("rearm")

    # ---- the device reports ----------------------------------------------------------------------

    def submitted(self, stream: Stream, pending: Pending) -> None:
        """Nothing: a step is what runs."""

    def started(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """The step, or work within it."""
        self._depth += 1

    def finished(self, stream: Stream, pending: Pending) -> None:  # noqa: ARG002
        """The step has ended, or work within it."""
        self._depth -= 1

    def joined(self, pending: Pending) -> None:
        """Nothing: a step is what runs."""

    def recorded(self, stream: Stream, ticket: Ticket) -> None:  # noqa: ARG002
        """A record, unless a replay has passed what was armed for it."""
        if self._depth and ticket not in self._armed:
            self.entries.append("record")

    def waited(self, stream: Stream | None, ticket: Ticket) -> None:
        """Nothing: a step of the kit's waits for nothing."""

    def phase(self, stream: Stream | None, name: str) -> None:  # noqa: ARG002
        """The core calls the out-graph hook."""
        if name == "out_graph":
            self.entries.append(name)
