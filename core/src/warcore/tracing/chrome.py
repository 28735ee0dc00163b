"""A timeline as Chrome trace events: a JSON document that trace viewers open.

The format is described in "Trace Event Format": complete events (X) for slices, instants (i) for
records and waits, flows (s, f) for the arrows, metadata (M) for names; times in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warcore import __version__
from warcore.tracing.timeline import fence_word, title

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from warcore.tracing.timeline import Slice, Step, Timeline

SCHEMA = 1
PID: Final = 1
_COLOURS: Final = {
    "fine": "good",
    "coarse": "bad",
    "failed": "terrible",
    "unfenced": "generic_work",
    "write": "thread_state_iowait",
    "copy": "thread_state_runnable",
    "wait": "grey",
}
"""Of the names that the format reserves. Viewers that have colours of their own ignore them."""


def document(timeline: Timeline, engine: Mapping[str, Any]) -> dict[str, Any]:
    """The whole file; `engine`: what the engine says of itself."""
    # Stable: at one moment the slice comes before what lies in it, and both before their flows.
    events = sorted([*_slices(timeline), *_marks(timeline), *_flows(timeline)], key=_ts)
    return {
        "traceEvents": [*_names(timeline), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "schema": SCHEMA,
            "warcore": __version__,
            "clock": timeline.clock,
            "steps": len(timeline.steps),
            "dropped_steps": timeline.dropped,
            "engine": dict(engine),
        },
    }


def _ts(event: dict[str, Any]) -> float:
    ts: float = event["ts"]
    return ts


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    def fact(what: str, tid: int, /, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": PID, "tid": tid, "args": args}

    yield fact("process_name", 0, name=f"warcore on {timeline.device}")
    for i, lane in enumerate(timeline.lanes):
        tid = i + 1
        yield fact("thread_name", tid, name=lane if i == 0 else f"{lane} stream")
        yield fact("thread_sort_index", tid, sort_index=tid)


def _slices(timeline: Timeline) -> Iterator[dict[str, Any]]:
    tids = _tids(timeline)
    steps = {step.number: step for step in timeline.steps}
    for each in timeline.slices:
        step = steps[each.step]
        event = {
            "ph": "X",
            "name": title(each, step),
            "cat": each.kind,
            "pid": PID,
            "tid": tids[each.lane],
            "ts": each.begin / 1000,
            "dur": (each.end - each.begin) / 1000,
            "args": _args(each, step),
        }
        colour = _COLOURS.get(fence_word(step) if each.kind == "forward" else each.kind)
        if colour is not None:
            event["cname"] = colour
        yield event


def _args(each: Slice, step: Step) -> dict[str, Any]:
    args: dict[str, Any] = {"step": each.step}
    if each.failed:
        args["failed"] = True
    if each.inside or each.kind not in {"forward", "wait", "launch"}:
        return args
    args |= {"mode": step.mode, "requests": list(step.requests), "tokens": step.tokens}
    args |= {"fence": fence_word(step), "reason": step.fence}
    words = {
        "runs_as": step.runs_as,
        "detail": step.detail,
        "next": step.next,
        "error": step.error,
    }
    return args | {key: value for key, value in words.items() if value}


def _marks(timeline: Timeline) -> Iterator[dict[str, Any]]:
    tids = _tids(timeline)
    for mark in timeline.marks:
        yield {
            "ph": "i",
            "s": "t",
            "name": f"{mark.kind} {mark.event}",
            "cat": mark.kind,
            "pid": PID,
            "tid": tids[mark.lane],
            "ts": mark.at / 1000,
            "args": {"step": mark.step, "generation": mark.generation},
        }


def _flows(timeline: Timeline) -> Iterator[dict[str, Any]]:
    tids = _tids(timeline)
    for number, arrow in enumerate(timeline.arrows, 1):
        common = {"name": arrow.kind, "cat": arrow.kind, "id": number, "pid": PID}
        args = {"event": arrow.event, "generation": arrow.generation, "step": arrow.step}
        start = {"ph": "s", "tid": tids[arrow.source], "ts": arrow.begin / 1000, "args": args}
        yield common | start
        yield common | {"ph": "f", "bp": "e", "tid": tids[arrow.target], "ts": arrow.end / 1000}


def _tids(timeline: Timeline) -> dict[str, int]:
    return {lane: i + 1 for i, lane in enumerate(timeline.lanes)}
