"""A timeline in a few numbers, for a person and for a program."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from warcore.tracing.timeline import HOST, fence_word

if TYPE_CHECKING:
    from warcore.tracing.timeline import Step, Timeline

SCHEMA = 1


def summary(timeline: Timeline) -> dict[str, Any]:
    """Facts of the steps that were kept; times in seconds, shares from 0 to 1.

    forward_busy: the share of the time from the first forward to the last in which the forward
    stream had work. host_waited: for results. schedule_waited: how long writes that were submitted
    already stood behind a fence: a host that is late has few of them. tables_held: the share of
    the forwards' time in which no write was allowed, for whoever came; None without a fence.
    step_seconds: the median from the begin of one decode to the next.
    """
    steps = timeline.steps
    fenced = [step for step in steps if step.fence != "none"]
    runs = [(step.begin, step.end) for step in steps if step.begin is not None]
    span = runs[-1][1] - runs[0][0] if runs else 0  # type: ignore[operator]
    busy = sum(end - begin for begin, end in runs)  # type: ignore[misc, operator]
    waits = sum(s.end - s.begin for s in timeline.slices if (s.lane, s.kind) == (HOST, "wait"))
    return {
        "schema": SCHEMA,
        "device": timeline.device,
        "clock": timeline.clock,
        "steps": len(steps),
        "dropped_steps": timeline.dropped,
        "modes": dict(Counter(step.mode for step in steps)),
        "graph_steps": sum(step.runs_as == "graph" for step in steps),
        "seconds": timeline.end / 1e9,
        "forward_busy": busy / span if span else 0.0,
        "host_waited": waits / timeline.end if timeline.end else 0.0,
        "schedule_waited": sum(step.waited for step in steps) / 1e9,
        "tables_held": _held(steps),
        "step_seconds": _period(steps),
        "fenced_steps": len(fenced),
        "fine_steps": sum(fence_word(step) == "fine" for step in fenced),
        "coarse": _coarse(steps),
    }


def _held(steps: tuple[Step, ...]) -> float | None:
    held = total = 0
    for step in steps:
        if step.begin is not None and step.end is not None and step.fence_at is not None:
            held += step.fence_at - step.begin
            total += step.end - step.begin
    return held / total if total else None


def _period(steps: tuple[Step, ...]) -> float | None:
    starts = [step.begin for step in steps if step.mode == "decode" and step.begin is not None]
    gaps = [after - before for before, after in pairwise(starts)]
    return median(gaps) / 1e9 if gaps else None


def _coarse(steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """What was not fine, most frequent first: {mode, reason, detail, next, count}."""
    counts = Counter(
        (step.mode, step.fence, step.detail, step.next)
        for step in steps
        if step.fence not in {"fine", "none"}
    )
    names = ("mode", "reason", "detail", "next")
    return [
        {**dict(zip(names, key, strict=True)), "count": count}
        for key, count in counts.most_common()
    ]
