"""PublishingRunner: executes a model's steps, and is the only place that publishes a fence.

Plugins declare and hand over a marker. The core records and offers, in the order that the
declaration demands, so a plugin cannot publish in the wrong place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore.contract import ForwardMode, SharedReadEnds
from warcore.errors import WiringError
from warcore.fence import FenceReason, Offer
from warcore.gates import prefill_gates, reads_have_ended
from warcore.modelrunner import ModelRunner
from warcore.recording import RecordedStep
from warcore.resolution import resolve
from warcore.scope import Scope

if TYPE_CHECKING:
    from warcore.backend import AttentionBackend
    from warcore.batch import Bucket, ForwardBatch
    from warcore.captures import Captures
    from warcore.device import Device, Event, EventRing, Ticket
    from warcore.fence import ReadFence
    from warcore.model import Model, Output
    from warcore.scope import EngineScope, Reader

_LAST: Final = (
    "name its runner in last_shared_read_runner; in prefill steps, declare later_prefill_reader"
)
_ONCE: Final = (
    "after a prefill, execute a runner once, with the rows and positions that were staged; another "
    "pass needs a runner of its own"
)


class PublishingRunner(ModelRunner):
    """A model, its backend and its scope: offers a ticket to the fence where its reads have ended.

    The core lends it a fence for one launch.
    """

    def __init__(
        self,
        device: Device,
        model: Model,
        backend: AttentionBackend,
        scope: Scope,
        engine: EngineScope,
        *,
        ring: EventRing,
        buckets: tuple[Bucket, ...] = (),
        role: str = "target",
        prefill_read_done: bool = True,
    ) -> None:
        """buckets: what shall be captured of its steps, in this order."""
        self.info = model.info
        self.buckets = buckets
        self.captures: Captures | None = None
        """What a graph runner captured for it; None: nothing yet, or nothing at all."""
        self._device = device
        self.recorded = RecordedStep(device, model, backend)
        """The part of a step that a graph holds."""
        self._backend = backend
        self._scope = scope
        self._engine = engine
        self.ring = ring
        self.role = role
        self._prefill_read_done = prefill_read_done
        self._fence: ReadFence | None = None
        self._staged: ForwardBatch | None = None
        self._was_staged = False

    def join(self, engine: EngineScope, beside: tuple[Reader, ...]) -> None:
        """Learn what an algorithm and its stagers declared, before the first step.

        beside: who reads in steps of this runner, too: the algorithm.
        """
        self._engine = engine
        self._scope = Scope.of((*self._scope.readers, *beside))

    def lend(self, fence: ReadFence | None) -> None:
        """The fence that this runner's phases offer to until the next call; None: nobody asks."""
        self._fence = fence
        self._staged, self._was_staged = None, False

    @property
    def backend_name(self) -> str:
        """`backend:name`, for messages."""
        return self._scope.readers[0].plugin

    def declared(self, mode: ForwardMode) -> SharedReadEnds:
        """Where its reads end in steps of `mode`, by the latest vote."""
        return self._scope.ends[mode]

    def stage(self, batch: ForwardBatch) -> SharedReadEnds:
        """As `ModelRunner.stage` has it."""
        if self._is_published():
            raise WiringError(
                f"a {self.role} runner would be staged for {batch.mode.name} after the reads of "
                "the step were declared to be over",
                next="stage in a stager's `stage`, which comes before that",
            )
        self._staged = None
        self._backend.init_forward_metadata_out_graph(batch)
        # What else reads in this step was asked at the gate before; this is about the runner alone.
        backend = self._scope.readers[0]
        reason, detail = reads_have_ended(batch, batch.padded_tokens, (backend,))
        if reason is FenceReason.SNAPSHOT_ERROR:
            raise WiringError(detail, next="mend the snapshot, or run without a stager")
        self._staged, self._was_staged = batch, True
        if reason is FenceReason.FINE:
            return SharedReadEnds.PRE_REPLAY
        return max(backend.votes[batch.mode], SharedReadEnds.IN_REPLAY)

    def _take_staged(self, batch: ForwardBatch) -> bool:
        """Whether `batch` was staged: other tokens, in the same places."""
        staged, self._staged = self._staged, None
        return (
            staged is not None
            and staged.mode is batch.mode
            and staged.rows is batch.rows
            and staged.positions is batch.positions
        )

    def execute(self, batch: ForwardBatch) -> Output:
        """As `ModelRunner.execute` has it."""
        if batch.padded_tokens > batch.padded_size * batch.max_q_len:
            raise WiringError(
                f"a {self.role} {batch.mode.name} batch has {batch.padded_tokens} tokens, and says "
                f"that none of its {batch.padded_size} requests has more than {batch.max_q_len}",
                next="set max_q_len where a batch is made of another one",
            )
        if self._take_staged(batch):
            # What was staged lies where the eager step looks for it.
            return self._eager(batch, staged=True)
        if self._comes_too_late():
            raise WiringError(
                f"a {self.role} {batch.mode.name} phase would read shared buffers after the phase "
                "that was declared the last to do so",
                next=_ONCE if self._was_staged else _LAST,
            )
        bucket = None if self.captures is None else self.captures.bucket_for(batch)
        return self._eager(batch) if bucket is None else self._replayed(batch, bucket)

    def _comes_too_late(self) -> bool:
        """Whether the fence has settled without this phase in mind.

        In a prefill step a stager has vouched for later readers, or the fence is coarse. But for a
        reader whom nobody declared, and for one that was staged: it read ahead for one pass.
        """
        fence = self._fence
        if fence is None or not self._is_published():
            return False
        vouched = self._engine.later_prefill_reader and not self._was_staged
        return not (fence.prefill and vouched)

    def _is_published(self) -> bool:
        """Whether the next step may go on writing: in a prefill step, if the fence is fine."""
        fence = self._fence
        if fence is None or not fence.settled:
            return False
        return not fence.prefill or fence.reason is FenceReason.FINE

    # ---- the two ways of a step: where each records and offers -----------------------------------

    def _eager(self, batch: ForwardBatch, *, staged: bool = False) -> Output:
        """Without a graph the event goes exactly where the latest vote says."""
        mode, backend = batch.mode, self._backend
        ends = None if mode.is_prefill else self._scope.ends[mode]
        if ends is SharedReadEnds.UNKNOWN:
            self._offer_undeclared(mode)
        if not staged:
            self._device.phase("out_graph")
            backend.init_forward_metadata_out_graph(batch)
        if mode.is_prefill:
            self._publish_prefill(batch, batch.padded_tokens)
        if ends is SharedReadEnds.PRE_REPLAY:
            self._record_and_offer(mode)
        self._device.phase("in_graph")
        backend.init_forward_metadata_in_graph(batch)
        if ends is SharedReadEnds.IN_REPLAY:
            self._record_and_offer(mode)
        self._device.phase("body")
        output = self.recorded.body(batch)
        if ends is SharedReadEnds.POST_REPLAY:
            self._record_and_offer(mode)
        return output

    def _replayed(self, batch: ForwardBatch, bucket: Bucket) -> Output:
        """With a graph nothing can be recorded inside it but its own marker."""
        assert self.captures is not None
        mode, captures = batch.mode, self.captures
        view = self.recorded.view = captures.load(batch, bucket)
        marker = captures.marker(bucket)
        ends = (
            None
            if mode.is_prefill
            else resolve(self._scope.ends[mode], graph=True, marker=marker is not None)
        )
        self._device.phase("out_graph")
        self._backend.init_forward_metadata_out_graph(view)
        if mode.is_prefill:
            self._publish_prefill(batch, bucket.tokens)
        if ends is SharedReadEnds.PRE_REPLAY:
            self._record_and_offer(mode)
        if ends is SharedReadEnds.UNKNOWN:
            self._offer_undeclared(mode)
        self._device.phase("replay")
        if ends is SharedReadEnds.IN_REPLAY and self._listener(mode) is not None:
            assert marker is not None
            output = self._replay_past(marker, batch, bucket)
        else:
            output = captures.replay(bucket, batch)
        if ends is SharedReadEnds.POST_REPLAY:
            self._record_and_offer(mode)
        return output

    def _replay_past(self, marker: Event, batch: ForwardBatch, bucket: Bucket) -> Output:
        """Offer the marker's ticket, then replay.

        In this order: on a host device the replay lasts as long as the work, and the schedule
        stream must be able to go on in the middle of it. On CUDA the wait is issued after the
        launch has returned, and binds to this replay's record.
        """
        assert self.captures is not None
        try:
            self._offer_ticket(batch.mode, marker.rearm())
            output = self.captures.replay(bucket, batch)
        except BaseException:
            # The schedule stream may be waiting already, for a replay that will not come.
            marker.disarm()
            raise
        if marker.disarm():
            raise WiringError(
                f"graph_runner:{self.captures.name}: its replay of {bucket} has not passed the "
                "marker of that capture",
                next="let replay(bucket) replay the graph that capture(bucket) recorded",
            )
        return output

    # ---- publishing ------------------------------------------------------------------------------

    def _publish_prefill(self, batch: ForwardBatch, num_qo_tokens: int) -> None:
        """Only the target's gates settle the fence of a prefill step."""
        if self._listener(batch.mode) is None:
            return
        self._device.phase("gates")
        reason, detail = prefill_gates(
            batch, num_qo_tokens, self._scope, self._engine, enabled=self._prefill_read_done
        )
        if reason is FenceReason.FINE:
            self._record_and_offer(batch.mode)
        else:
            self._offer(Offer(batch.mode, None, reason, detail))

    def _listener(self, mode: ForwardMode) -> ReadFence | None:
        """Who hears this runner's offers: in a prefill step only the target's gates speak."""
        fence = self._fence
        if fence is not None and fence.prefill and not fence.expects(self, mode):
            return None
        return fence

    def _record_and_offer(self, mode: ForwardMode) -> None:
        if self._listener(mode) is not None:
            ticket, release = self.ring.record(), self.ring.release
            self._offer(Offer(mode, ticket, FenceReason.FINE, release=release))

    def _offer_ticket(self, mode: ForwardMode, ticket: Ticket) -> None:
        """A marker's, which no ring holds: a replay re-arms the same event each time."""
        self._offer(Offer(mode, ticket, FenceReason.FINE))

    def _offer_undeclared(self, mode: ForwardMode) -> None:
        self._offer(Offer(mode, None, FenceReason.UNDECLARED, self._scope.latest[mode]))

    def _offer(self, offer: Offer) -> None:
        fence = self._listener(offer.mode)
        if fence is not None:
            fence.offer(self, offer)
