"""Graph runners: the plugin kind that captures steps and replays them. The core publishes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import attrs

from warcore.contract import ForwardMode, GraphKind
from warcore.inputs import StaticInputs
from warcore.options import NoOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warcore.backend import AttentionSpec
    from warcore.batch import Bucket, ForwardBatch
    from warcore.device import Event, Graph
    from warcore.model import Output

PADDING = 2
"""A prefill replays a bucket of at most so many times its own tokens: padding costs compute."""


@attrs.frozen(eq=False)
class RunnerContext:
    """What a graph runner is built from. Fields are only ever added; authors never build one."""

    spec: AttentionSpec
    buckets: tuple[Bucket, ...]
    """What will be captured, in this order: the largest first."""
    marker: Event | None
    """The external event to record right after the in-graph hook; None: the device has none."""
    graph: Callable[[], Graph]
    """A new graph in this runner's memory pool."""
    step: Callable[..., Output]
    """step(view, marker, at_attend=None): the in-graph hook, `marker.record()`, then the body.

    What a capture records. at_attend(call) runs in place of each attention call and must return
    what `call()` returns: a runner may end a segment there.
    """
    graph_key: Callable[[ForwardBatch], int | None]
    """The backend's; None: this batch runs eagerly."""
    static: Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
    """static(name, shape, dtype): zeroed memory, one address for life; same name, same memory."""
    options: object


class GraphRunner(ABC):
    """The plugin kind `graph_runner`. One instance per ModelRunner; all methods in stream order.

    The base class chooses buckets and keeps the static inputs; a plugin captures and replays.
    It hands over its marker and never records or offers: it cannot publish in the wrong order.
    """

    modes: ClassVar[frozenset[ForwardMode]] = frozenset()
    """The kinds of step that it captures."""
    kind: ClassVar[GraphKind] = GraphKind.UNBROKEN
    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> list[str]:  # noqa: ARG003
        """Every reason why it cannot serve `spec`; [] if it can. Allocates nothing."""
        return []

    def __init__(self, ctx: RunnerContext) -> None:
        """Take static memory; capture nothing yet."""
        self.ctx = ctx
        self._inputs = StaticInputs(ctx.buckets, ctx.static, tree=ctx.spec.tree)
        self._choices: dict[tuple[ForwardMode, int], list[Bucket]] = {}
        for bucket in sorted(ctx.buckets, key=lambda b: (b.tokens, b.rows)):
            self._choices.setdefault((bucket.mode, bucket.key), []).append(bucket)

    @abstractmethod
    def capture(self, bucket: Bucket, view: ForwardBatch) -> None:
        """Record `ctx.step(view, ctx.marker)`; called once for each bucket, before any replay.

        view: what `load` gave for padding rows only; its out-graph metadata is there.
        """

    @abstractmethod
    def replay(self, bucket: Bucket) -> Output:
        """Run what was captured, on the current stream; its output, static memory, with padding."""

    def bucket_for(self, batch: ForwardBatch) -> Bucket | None:
        """The smallest captured step that holds `batch`; None: it runs eagerly.

        A prefill also runs eagerly if more than half of the smallest one would be padding.
        """
        if batch.mode not in self.modes:
            return None
        key = self.ctx.graph_key(batch)
        if key is None:
            return None
        for bucket in self._choices.get((batch.mode, key), ()):
            if bucket.holds(batch):
                wasteful = batch.mode.is_prefill and bucket.tokens > PADDING * batch.padded_tokens
                return None if wasteful else bucket
        return None

    def load(self, batch: ForwardBatch, bucket: Bucket) -> ForwardBatch:
        """Write `batch` and its padding into the static inputs; the static view of `bucket`.

        Every element that a replay reads is written: nothing of an earlier, larger batch is left.
        """
        return self._inputs.load(batch, bucket)

    def marker(self, bucket: Bucket) -> Event | None:  # noqa: ARG002
        """The external event that the capture of `bucket` recorded after the in-graph hook.

        None: it has none, and a read that ends there is fenced at the end of the replay.
        """
        return self.ctx.marker
