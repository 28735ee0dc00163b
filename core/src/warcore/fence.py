"""ReadFence: where one launch's last shared read ends, and what the next write waits for.

One object per launch. The runner that owns the step's last reading phase offers a ticket; the
schedule stream waits for it before its next write. Whatever is unknown, undeclared, failed or
switched off ends in the coarse fence, which waits for the whole forward: slower, never wrong.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import DeviceError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.contract import ForwardMode
    from warcore.device import Device, Stream, Ticket

log = logging.getLogger("warcore.fence")


class FenceReason(enum.Enum):
    """Why a fence fell where it did. Everything but FINE waits for the whole forward."""

    FINE = "fine"
    DISABLED = "disabled"
    FORCED_COARSE = "forced_coarse"
    UNDECLARED = "undeclared"
    NOT_PRE_REPLAY = "not_pre_replay"
    MODE_NOT_EXTEND = "mode_not_extend"
    NO_STAGER = "no_stager"
    STAGER_DECLINED = "stager_declined"
    STAGER_ERROR = "stager_error"
    SNAPSHOT_ERROR = "snapshot_error"
    DECLARATION_ERROR = "declaration_error"
    NOT_PUBLISHED = "not_published"
    NOT_OWNER = "not_owner"
    FORWARD_ERROR = "forward_error"


NEXT_STEP: dict[FenceReason, str] = {
    FenceReason.DISABLED: "EngineConfig(prefill_read_done=True)",
    FenceReason.FORCED_COARSE: "--fence declared",
    FenceReason.UNDECLARED: "declare shared_read_ends for this mode (docs/concepts.md)",
    FenceReason.NOT_PRE_REPLAY: "copy what prefill reads ahead, then declare PRE_REPLAY",
    FenceReason.MODE_NOT_EXTEND: "run without --mixed",
    FenceReason.NO_STAGER: "warcore list-plugins --kind stager",
    FenceReason.STAGER_DECLINED: "see the stager's README for what it can stage",
    FenceReason.STAGER_ERROR: "run with --debug and mend the stager",
    FenceReason.SNAPSHOT_ERROR: "run with --debug and mend the snapshot hook",
    FenceReason.DECLARATION_ERROR: "let one plugin answer last_shared_read_runner",
    FenceReason.NOT_PUBLISHED: "name the runner whose last phase reads shared buffers",
    FenceReason.NOT_OWNER: "name the runner whose last phase reads shared buffers",
    FenceReason.FORWARD_ERROR: "run with --debug for the traceback",
}
"""What would make a coarse fence fine; shown wherever the reason is."""


@attrs.define(eq=False)
class FenceCounters:
    """How often each {mode, reason} settled. Each coarse pair is logged once, with the remedy."""

    counts: dict[tuple[ForwardMode, FenceReason], int] = attrs.field(factory=dict)

    def count(self, mode: ForwardMode, reason: FenceReason, detail: str) -> None:
        """One more launch whose fence fell for `reason`; called once per overlapped launch."""
        key = mode, reason
        seen = self.counts.get(key, 0)
        self.counts[key] = seen + 1
        if not seen and reason is not FenceReason.FINE:
            log.info(
                "coarse fence in %s steps: %s%s. Next: %s",
                mode.name,
                reason.value,
                f" ({detail})" if detail else "",
                NEXT_STEP[reason],
            )

    def facts(self) -> list[dict[str, Any]]:
        """{mode, reason, count} of each pair, in a fixed order."""
        ordered = sorted(self.counts.items(), key=lambda item: str(item[0]))
        return [
            {"mode": mode.value, "reason": reason.value, "count": count}
            for (mode, reason), count in ordered
        ]


@attrs.frozen(eq=False)
class Offer:
    """A phase's word: its shared reads end at `ticket`, or None and the reason why not."""

    mode: ForwardMode
    ticket: Ticket | None
    reason: FenceReason
    detail: str = ""
    release: Callable[[Ticket], None] | None = None
    """Gives the ticket's slot back to its ring, once waited for, superseded or discarded."""

    def discard(self) -> None:
        """The ticket is not needed any more."""
        if self.ticket is not None and self.release is not None:
            self.release(self.ticket)


class ReadFence:
    """The fence of one launch.

    Written on the forward stream (`expect`, `give_up`, `offer`, `close`), consumed by work on the
    schedule stream (`wait`). On a host device those are two threads: the lock makes the change of
    a ticket and its consumption one step each, and the latch orders settling before waiting.
    Nothing of the device is called under the lock: a seeded device may pass the turn there.
    """

    def __init__(self, device: Device, mode: ForwardMode, *, forced_coarse: bool = False) -> None:
        self.mode = mode
        """The mode of the phase that settled, or of the step."""
        self.prefill = mode.is_prefill
        """Whether it is of a prefill step, where only the target's gates settle it."""
        self.reason = FenceReason.FORCED_COARSE if forced_coarse else FenceReason.NOT_PUBLISHED
        self.detail = ""
        self.settled_by: int | None = None
        """Which offer settled, counted from 0; None while nothing has."""
        self._given_up = forced_coarse
        self._expected: tuple[object, ForwardMode] = (None, mode)
        self._offers = 0
        self._owner_offered = False
        self._held: Offer | None = None
        self._taken = False
        self._latch = device.latch()
        self._lock = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether the owner's last phase has spoken, with a ticket or without."""
        return self.settled_by is not None

    def expect(self, runner: object, mode: ForwardMode) -> None:
        """Name the phase that settles: the one that `runner` executes in `mode`.

        Before the first phase; by default nobody's. It runs once in a step.
        """
        self._expected = runner, mode

    def expects(self, runner: object, mode: ForwardMode) -> bool:
        """Whether that phase settles."""
        return self._expected[0] is runner and self._expected[1] is mode

    def give_up(self, reason: FenceReason, detail: str = "") -> None:
        """Make the step coarse whatever is offered later. The first reason stays."""
        if not self._given_up:
            self.reason, self.detail, self._given_up = reason, detail, True

    def offer(self, runner: object, offer: Offer) -> None:
        """Hear a runner. Only the expected phase settles; every other word is superseded.

        DeviceError if a launch is settled twice: the next write may have passed the first ticket
        already.
        """
        index, self._offers = self._offers, self._offers + 1
        self._owner_offered = self._owner_offered or self._expected[0] is runner
        if self._given_up or not self.expects(runner, offer.mode):
            offer.discard()
            return
        if self.settled:
            offer.discard()
            raise DeviceError("the phase that settles a launch's fence ran twice in it")
        self.settled_by, self.mode = index, offer.mode
        self.reason, self.detail = offer.reason, offer.detail
        if offer.ticket is not None:
            with self._lock:
                self._held = offer
            self._latch.set()

    def close(self, forward_done: Ticket, error: BaseException | None = None) -> None:
        """The forward has enqueued everything. Always called, once, also after a failure.

        Unsettled, or settled without a ticket: the fence is coarse and waits for `forward_done`.
        After an error `forward_done` also replaces a ticket that nobody has waited for yet, since
        work enqueued before the failure may still read.
        """
        if error is not None:
            self.reason, self.detail = FenceReason.FORWARD_ERROR, shown(error)
        elif not self.settled and not self._given_up and self._offers and not self._owner_offered:
            self.reason = FenceReason.NOT_OWNER
        coarse = Offer(self.mode, forward_done, self.reason)
        with self._lock:
            if self._held is not None and error is not None:
                self._held.discard()
                self._held = None
            if self._held is None and not self._taken:
                self._held = coarse
        self._latch.set()

    def wait(self, stream: Stream) -> None:
        """Make `stream` wait for the fence; work submitted to the schedule stream.

        It first waits for the fence to settle, which on CUDA has happened before the call. The
        ticket is consumed: a fence cannot be waited for twice.
        """
        self._latch.wait()
        with self._lock:
            held, self._held, self._taken = self._held, None, True
        if held is None or held.ticket is None:
            raise DeviceError("a fence was waited for twice; one launch has one barrier")
        stream.wait(held.ticket)
        held.discard()
