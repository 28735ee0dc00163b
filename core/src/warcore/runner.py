"""ModelRunner: executes a model's steps, and is the only place that publishes a fence.

Plugins declare and hand over a marker. The core records and offers, in the order that the
declaration demands, so a plugin cannot publish in the wrong place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from warcore.contract import ForwardMode, GraphKind, SharedReadEnds
from warcore.errors import WiringError
from warcore.fence import FenceReason, Offer
from warcore.gates import prefill_gates
from warcore.options import NoOptions

if TYPE_CHECKING:
    import torch

    from warcore.backend import AttentionBackend
    from warcore.batch import ForwardBatch
    from warcore.device.ring import EventRing
    from warcore.fence import ReadFence
    from warcore.model import Layer, Model, ModelInfo, Output
    from warcore.scope import EngineScope, Scope


class GraphRunner:
    """The plugin kind `graph_runner`: captures steps and replays them; the core publishes."""

    modes: ClassVar[frozenset[ForwardMode]] = frozenset()
    kind: ClassVar[GraphKind] = GraphKind.NONE
    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0


class ModelRunner:
    """A model, its backend and its scope.

    Plugins see `info` and `execute`; never the fence, which the core lends for one launch.
    """

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        scope: Scope,
        engine: EngineScope,
        ring: EventRing,
        *,
        role: str = "target",
        prefill_read_done: bool = True,
    ) -> None:
        self.info: ModelInfo = model.info
        self._model = model
        self._backend = backend
        self._scope = scope
        self._engine = engine
        self._ring = ring
        self._role = role
        self._prefill_read_done = prefill_read_done
        self._fence: ReadFence | None = None

    def lend(self, fence: ReadFence | None) -> None:
        """The fence that this runner's phases offer to until the next call; None: nobody asks."""
        self._fence = fence

    def execute(self, batch: ForwardBatch) -> Output:
        """Run one phase on the current stream.

        WiringError if another phase has settled this launch's fence: this one would read shared
        buffers that the next step may have rewritten.
        """
        if self._comes_too_late():
            raise WiringError(
                f"a {self._role} {batch.mode.name} phase would read shared buffers after the phase "
                "that was declared the last to do so",
                next="name its runner in last_shared_read_runner; in prefill steps, declare "
                "later_prefill_reader",
            )
        if batch.mode.is_prefill:
            return self._prefill(batch)
        return self._eager(batch, self._scope.ends[batch.mode])

    def _comes_too_late(self) -> bool:
        """Whether the fence has settled without this phase in mind.

        In a prefill step the gates have made sure that a later reader is staged, or that the
        fence is coarse; unless there is a reader whom nobody declared.
        """
        fence = self._fence
        if fence is None or not fence.settled:
            return False
        if not fence.prefill:
            return True
        return fence.reason is FenceReason.FINE and not self._engine.later_prefill_reader

    def _prefill(self, batch: ForwardBatch) -> Output:
        """Metadata, gates, body: only the gates settle the fence of a prefill step."""
        self._backend.init_forward_metadata_out_graph(batch)
        if self._fence is not None and self._role == "target":
            self._publish_prefill(batch, batch.padded_tokens)
        self._backend.init_forward_metadata_in_graph(batch)
        return self._body(batch)

    def _eager(self, batch: ForwardBatch, ends: SharedReadEnds) -> Output:
        """A step without a graph: the event goes exactly where the latest vote says."""
        if ends is SharedReadEnds.UNKNOWN:
            self._offer(batch.mode, FenceReason.UNDECLARED, self._scope.latest[batch.mode])
        self._backend.init_forward_metadata_out_graph(batch)
        if ends is SharedReadEnds.PRE_REPLAY:
            self._record_and_offer(batch.mode)
        self._backend.init_forward_metadata_in_graph(batch)
        if ends is SharedReadEnds.IN_REPLAY:
            self._record_and_offer(batch.mode)
        output = self._body(batch)
        if ends is SharedReadEnds.POST_REPLAY:
            self._record_and_offer(batch.mode)
        return output

    def _body(self, batch: ForwardBatch) -> Output:
        backend = self._backend

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> torch.Tensor:
            return backend.forward(q, k, v, layer, batch)

        return self._model.forward(batch, attend)

    def _publish_prefill(self, batch: ForwardBatch, num_qo_tokens: int) -> None:
        reason, detail = prefill_gates(
            batch, num_qo_tokens, self._scope, self._engine, enabled=self._prefill_read_done
        )
        if reason is FenceReason.FINE:
            self._record_and_offer(batch.mode)
        else:
            self._offer(batch.mode, reason, detail)

    @property
    def _listener(self) -> ReadFence | None:
        """Who hears this runner's offers: in a prefill step only the target's gates speak."""
        fence = self._fence
        silent = fence is not None and fence.prefill and self._role != "target"
        return None if silent else fence

    def _record_and_offer(self, mode: ForwardMode) -> None:
        fence = self._listener
        if fence is not None:
            offer = Offer(mode, self._ring.record(), FenceReason.FINE, release=self._ring.release)
            fence.offer(self, offer, last=self._is_last_phase(mode))

    def _offer(self, mode: ForwardMode, reason: FenceReason, detail: str) -> None:
        fence = self._listener
        if fence is not None:
            offer = Offer(mode, None, reason, detail)
            fence.offer(self, offer, last=self._is_last_phase(mode))

    def _is_last_phase(self, mode: ForwardMode) -> bool:
        """A target has one phase a step; a draft drafts first, and its draft-extend is the last."""
        return self._role == "target" or mode is ForwardMode.DRAFT_EXTEND
