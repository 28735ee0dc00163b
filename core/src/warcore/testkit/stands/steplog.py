"""StepLog: what happens in one replayed step, in order, as the fence's tables write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.device import Observer
from warcore.testkit.detectors.used import note
from warcore.testkit.detectors.wrapping import Wrapping
from warcore.testkit.stands.runnerstand import captures_of

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.device import Stream, Ticket
    from warcore.fence import Offer
    from warcore.testkit.stands.stand import Stand


class StepLog(Observer):
    """Logs a step.

    entries: "out_graph", "record" (of whatever event), "rearm" (of the marker), "offer" or
    "offer_none", "replay". A marker that a replay passes is no record.
    """

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._armed: list[Ticket] = []

    def watch(self, stand: Stand, batch: ForwardBatch) -> None:
        """Run a step of `stand`; it has no "replay" if it runs eagerly."""
        note("event position")
        captures, runner = captures_of(stand, batch.mode), stand.runner_of(batch.mode)
        bucket = captures.bucket_for(batch)
        with Wrapping() as wrapping, stand.watched_by(self):
            wrapping.before(runner, "_offer", self._offers)
            wrapping.before(captures, "replay", lambda *_: self.entries.append("replay"))
            marker = None if bucket is None else captures.marker(bucket)
            if marker is not None:
                wrapping.after(marker, "rearm", self._rearmed)
            stand.run(batch)

    def _offers(self, offer: Offer) -> None:
        self.entries.append("offer_none" if offer.ticket is None else "offer")

    def _rearmed(self, ticket: Ticket) -> None:
        self._armed.append(ticket)
        self.entries.append("rearm")

    # ---- the device reports ----------------------------------------------------------------------

    def recorded(self, stream: Stream, ticket: Ticket) -> None:  # noqa: ARG002
        """A record, unless a replay has passed what was armed for it."""
        if ticket not in self._armed:
            self.entries.append("record")

    def phase(self, stream: Stream | None, name: str) -> None:  # noqa: ARG002
        """The core calls the out-graph hook."""
        if name == "out_graph":
            self.entries.append(name)
