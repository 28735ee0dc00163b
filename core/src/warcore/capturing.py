"""Capturing: every step that will be replayed is recorded at start, before the first launch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from warcore.captures import Captures
from warcore.errors import DeviceError, WiringError, blame
from warcore.graphs import RunnerContext
from warcore.inputs import blank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore.backend import AttentionSpec
    from warcore.batch import Bucket
    from warcore.device import Device, Stream
    from warcore.options import Chosen
    from warcore.runner import PublishingRunner
    from warcore.statics import Statics


def build_graph_runner(
    chosen: Chosen,
    runner: PublishingRunner,
    *,
    device: Device,
    forward: Stream,
    spec: AttentionSpec,
    statics: Statics,
) -> None:
    """Give `runner` a graph runner, for what its buckets hold. spec: what its backend serves."""
    pool = device.graph_pool()
    context = RunnerContext(
        spec=spec,
        buckets=runner.buckets,
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


def capture(
    runners: Sequence[PublishingRunner],
    forward: Stream,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Capture every bucket of runners that have a graph runner.

    WiringError if a step cannot be captured: the operation and its line, and the way without.
    """
    work = [(runner, bucket) for runner in runners for bucket in runner.buckets]
    for done, (runner, bucket) in enumerate(work):
        if progress is not None:
            progress("graphs", done, len(work))
        _capture(runner, bucket, forward)
    if progress is not None:
        progress("graphs", len(work), len(work))


def _capture(runner: PublishingRunner, bucket: Bucket, forward: Stream) -> None:
    captures, recorded = runner.captures, runner.recorded
    assert captures is not None
    backend = runner.backend_name
    empty = blank(bucket, recorded.device.torch_device)
    try:
        with blame(f"graph_runner {captures.name} with {backend}", f"{bucket}"):
            forward.submit(recorded.capture, captures, bucket, empty).result()
    except DeviceError as error:
        raise WiringError(
            f"graph_runner:{captures.name} with {backend}: {bucket} cannot be captured: "
            f"{error.what}\nFor its author: {error.next}",
            next="--graph-runner none",
        ) from error
