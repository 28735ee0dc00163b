"""Capturing: every step that will be replayed is recorded at start, before the first launch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from warcore.captures import Captures
from warcore.errors import DeviceError, WiringError, blame
from warcore.graphs import RunnerContext
from warcore.inputs import blank
from warcore.statics import Statics

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.assembly import Wired
    from warcore.graphs import GraphRunner
    from warcore.runner import ModelRunner


def capture_all(
    wired: Wired, runner: ModelRunner, progress: Callable[[str, int, int], None] | None = None
) -> None:
    """Build the graph runner, if there is one, and capture every bucket; the largest first.

    WiringError if a step cannot be captured: the operation and its line, and the way without.
    """
    choices, device, forward = wired.choices, wired.device, wired.forward
    if choices.graph_runner is None or not wired.buckets:
        return
    name = choices.graph_runner_name
    pool = device.graph_pool()
    context = RunnerContext(
        spec=choices.spec,
        buckets=wired.buckets,
        marker=device.event(external=True) if device.supports_external_events else None,
        graph=partial(device.graph, pool),
        step=runner.recorded.step,
        graph_key=wired.backend.graph_key,
        static=Statics(device, forward).static,
        options=choices.graph_runner_options,
    )
    with blame(f"graph_runner {name}", "__init__"):
        plugin: GraphRunner = forward.submit(choices.graph_runner, context).result()
    captures = runner.captures = Captures(name, plugin, pool)
    for done, bucket in enumerate(wired.buckets):
        if progress is not None:
            progress("graphs", done, len(wired.buckets))
        empty = blank(bucket, choices.spec.device)
        try:
            with blame(f"graph_runner {name} with backend {choices.backend_name}", f"{bucket}"):
                forward.submit(runner.recorded.capture, captures, bucket, empty).result()
        except DeviceError as error:
            raise WiringError(
                f"graph_runner:{name} with backend:{choices.backend_name}: {bucket} cannot be "
                f"captured: {error.what}\nFor its author: {error.next}",
                next="--graph-runner none",
            ) from error
    if progress is not None:
        progress("graphs", len(wired.buckets), len(wired.buckets))
