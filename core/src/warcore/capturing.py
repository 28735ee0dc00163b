"""Capturing: every step that will be replayed is recorded at start, before the first launch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from warcore.captures import Captures
from warcore.errors import DeviceError, WiringError, blame
from warcore.graphs import RunnerContext
from warcore.inputs import blank

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.backend import AttentionSpec
    from warcore.batch import Bucket
    from warcore.device import Device, Stream
    from warcore.options import Chosen
    from warcore.runner import PublishingRunner
    from warcore.statics import Statics


def build_graph_runner(
    chosen: Chosen,
    runner: PublishingRunner,
    buckets: tuple[Bucket, ...],
    *,
    device: Device,
    forward: Stream,
    spec: AttentionSpec,
    statics: Statics,
) -> Captures:
    """A graph runner for `runner`, which from now on replays what was captured of `buckets`."""
    pool = device.graph_pool()
    context = RunnerContext(
        spec=spec,
        buckets=buckets,
        marker=device.event(external=True) if device.supports_external_events else None,
        graph=partial(device.graph, pool),
        step=runner.recorded.step,
        graph_key=runner.recorded.backend.graph_key,
        static=statics.static,
        options=chosen.options,
    )
    with blame(f"graph_runner {chosen.name}", "__init__"):
        plugin = forward.submit(chosen.cls, context).result()
    runner.captures = Captures(chosen.name, plugin, pool)
    return runner.captures


def capture(
    runner: PublishingRunner,
    buckets: tuple[Bucket, ...],
    forward: Stream,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Capture every bucket of a runner that has a graph runner, in this order.

    WiringError if a step cannot be captured: the operation and its line, and the way without.
    """
    captures, recorded = runner.captures, runner.recorded
    assert captures is not None
    backend = runner.backend_name
    for done, bucket in enumerate(buckets):
        if progress is not None:
            progress("graphs", done, len(buckets))
        empty = blank(bucket, recorded.device.torch_device)
        try:
            with blame(f"graph_runner {captures.name} with {backend}", f"{bucket}"):
                forward.submit(recorded.capture, captures, bucket, empty).result()
        except DeviceError as error:
            raise WiringError(
                f"graph_runner:{captures.name} with {backend}: {bucket} cannot be "
                f"captured: {error.what}\nFor its author: {error.next}",
                next="--graph-runner none",
            ) from error
    if progress is not None:
        progress("graphs", len(buckets), len(buckets))
