"""Captures: what one ModelRunner has captured, and its graph runner as the core drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.batch import ForwardBatch
from warcore.errors import WiringError
from warcore.model import Output

if TYPE_CHECKING:
    from warcore.batch import Bucket
    from warcore.device import Event, GraphPool
    from warcore.graphs import GraphRunner

_TENSORS = tuple(
    field.name
    for field in attrs.fields(ForwardBatch)
    if isinstance(field.type, str) and field.type.startswith("torch.Tensor")
)


class Captures:
    """Holds a graph runner to its word: captured buckets, static memory, a marker that exists."""

    def __init__(self, name: str, runner: GraphRunner, pool: GraphPool) -> None:
        self.name = name
        """Of the plugin, as a person types it."""
        self.runner = runner
        """The plugin."""
        self._replays = 0
        self._pool = pool
        self._addresses: dict[Bucket, tuple[int, ...]] = {}
        self.markers: dict[Bucket, Event | None] = {}
        """Of each step that is captured: the event in its graph; None: there is none."""
        self._passed: Event | None = None

    def facts(self) -> dict[str, int]:
        """How many steps are captured, the bytes that they keep, and how many were replayed."""
        return {
            "captures": len(self.markers),
            "bytes": self._pool.nbytes,
            "replays": self._replays,
        }

    # ---- at start --------------------------------------------------------------------------------

    def load_blank(self, batch: ForwardBatch, bucket: Bucket) -> ForwardBatch:
        """The view that `bucket` is captured with; its addresses are binding from now on."""
        view = self.runner.load(batch, bucket)
        self._addresses[bucket] = _addresses(view)
        return view

    def capture(self, bucket: Bucket, view: ForwardBatch) -> None:
        """Let the runner record one step. WiringError if its marker is not in what it recorded."""
        self._passed = None
        self.runner.capture(bucket, view)
        marker = self.runner.marker(bucket)
        if marker is not None and marker is not self._passed:
            raise WiringError(
                f"graph_runner:{self.name}: the marker of {bucket} is not in its capture",
                next="hand ctx.marker to ctx.step within the capture, or return None from marker",
            )
        self.markers[bucket] = marker

    def passed(self, marker: Event | None) -> None:
        """A step has recorded `marker` into a graph, after its in-graph hook; None: it has not."""
        self._passed = marker

    # ---- in a step -------------------------------------------------------------------------------

    def bucket_for(self, batch: ForwardBatch) -> Bucket | None:
        """The captured step that `batch` fits in; None: it runs eagerly.

        WiringError if the runner chose one that it has not captured, or that is too small.
        """
        if batch.mode.is_prefill is (batch.logits_at is None):
            return None  # a captured prefill gives each request's last logits, other steps all
        bucket = self.runner.bucket_for(batch)
        if bucket is None:
            return None
        if bucket not in self.markers or not bucket.holds(batch):
            raise WiringError(
                f"graph_runner:{self.name} chose {bucket} for {batch.mode.value} of "
                f"{batch.padded_size} requests and {batch.padded_tokens} tokens, up to "
                f"{batch.max_seq_len}",
                next="choose among ctx.buckets, one that is large enough, or None",
            )
        return bucket

    def load(self, batch: ForwardBatch, bucket: Bucket) -> ForwardBatch:
        """The live batch in static memory. WiringError if that memory has moved."""
        view = self.runner.load(batch, bucket)
        if _addresses(view) != self._addresses[bucket]:
            moved = [
                name
                for name, now, then in zip(
                    _TENSORS, _addresses(view), self._addresses[bucket], strict=True
                )
                if now != then
            ]
            raise WiringError(
                f"graph_runner:{self.name}: {', '.join(moved)} of {bucket} moved since its "
                "capture, and a replay would read the old memory",
                next="write into the static inputs in place; never rebind them",
            )
        return view

    def marker(self, bucket: Bucket) -> Event | None:
        """The event inside the capture of `bucket`, right after its in-graph hook."""
        return self.markers[bucket]

    def replay(self, bucket: Bucket, batch: ForwardBatch) -> Output:
        """Run the captured step on the current stream; the output of `batch`'s live tokens."""
        output = self.runner.replay(bucket)
        if not isinstance(output, Output):
            raise WiringError(
                f"graph_runner:{self.name}: replay returned {output!r}, which is no Output",
                next="return what ctx.step returned within the capture",
            )
        self._replays += 1
        tokens = batch.padded_tokens
        rows = tokens if batch.logits_at is None else batch.logits_at.shape[0]
        hidden = output.hidden
        return Output(output.logits[:rows], None if hidden is None else hidden[:, :tokens])


def _addresses(view: ForwardBatch) -> tuple[int, ...]:
    return tuple(
        0 if tensor is None else tensor.data_ptr()
        for tensor in (getattr(view, name) for name in _TENSORS)
    )
