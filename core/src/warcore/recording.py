"""RecordedStep: the part of a step that a graph holds, and its capture."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from warcore.errors import WiringError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore.backend import AttentionBackend
    from warcore.batch import Bucket, ForwardBatch
    from warcore.captures import Captures
    from warcore.device import Device, Event
    from warcore.device.fresh import FreshMemory
    from warcore.model import Layer, Model, Output

    Attend = Callable[[Callable[[], torch.Tensor]], torch.Tensor]


class RecordedStep:
    """What follows the out-graph metadata: the in-graph hook, the marker, the body."""

    def __init__(self, device: Device, model: Model, backend: AttentionBackend) -> None:
        self.view: ForwardBatch | None = None
        """The static view of the step that is captured or replayed now."""
        self.hidden_layers: tuple[int, ...] = ()
        """Layers whose outputs the step gives too."""
        self.device = device
        self._model = model
        self.backend = backend
        self._captures: Captures | None = None
        self._fresh: FreshMemory | None = None
        """In a capture: what the out-graph hook makes anew, and the graph must not read."""

    def capture(self, captures: Captures, bucket: Bucket, blank: ForwardBatch) -> None:
        """Capture one step of padding rows; on the forward stream, before the first launch."""
        from warcore.device.fresh import FreshMemory

        view = self.view = captures.load_blank(blank, bucket)
        hook = partial(self.backend.init_forward_metadata_out_graph, view)
        hook()
        # Once more: what it makes anew, unlike what it made once, is not where a replay looks.
        self._fresh = FreshMemory(hook, "init_forward_metadata_out_graph")
        self._captures = captures
        try:
            if self.device.warms_up:
                self.step(view, None)
            captures.capture(bucket, view)
        finally:
            self._fresh = self._captures = None

    def step(
        self, view: ForwardBatch, marker: Event | None, at_attend: Attend | None = None
    ) -> Output:
        """What a graph runner records: `ctx.step`."""
        if self._fresh is None or self._captures is None:
            raise WiringError(
                "ctx.step was called outside capture", next="call it within capture(bucket, view)"
            )
        with self._fresh.refused():
            self.backend.init_forward_metadata_in_graph(view)
            if marker is not None:
                marker.record()
            self._captures.passed(marker if self.device.capturing else None)
            return self.body(view, at_attend)

    def body(self, batch: ForwardBatch, at_attend: Attend | None = None) -> Output:
        """The layers of the model."""
        backend = self.backend

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> torch.Tensor:
            if at_attend is None:
                return backend.forward(q, k, v, layer, batch)
            return at_attend(partial(self._attend_between, q, k, v, layer))

        return self._model.forward(batch, attend, self.hidden_layers)

    def _attend_between(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer
    ) -> torch.Tensor:
        """Attention between two segments: in the capture, and again in each replay.

        It sees the host facts of the step that runs.
        """
        assert self.view is not None
        with nullcontext() if self._fresh is None else self._fresh.allowed():
            return self.backend.forward(q, k, v, layer, self.view)
