"""What a real run spends where: the quantities of `overlap_model.py`, measured.

A step's quantities are means over all the decode steps of a run but the first and last few: pages
are written every 16th step only, and a mean counts that.

    D, W     from the start to the end of the work: by the clock on a host device; by timing events
             on CUDA, where D holds the gaps in which the device waits for the next kernel
    reads    from the start of a forward until its fence was passed; D in the normal loop
    H_*      by a clock that stands still while the host's own thread runs a stream's work (inline).
             On CUDA launching kernels is work of the host, and part of H_post, and so is recording
             the timing events of `warcore.tracing`
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import attrs
from measure import token_ids
from overlap_model import MODES, Costs, predicted

from warcore import EngineConfig, SamplingParams
from warcore.assembly import assemble
from warcore.request import Request
from warcore.tracing import Recorder
from warcore.tracing.timeline import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore.assembly import Assembly
    from warcore.tracing import Timeline
    from warcore.tracing.timeline import Slice

FIRST, LAST, PROMPT = 4, 3, 16
"""Steps at both ends of a round that are not counted: the prefill, and the pipeline filling and
running dry. Prompt tokens of each request."""


@attrs.frozen
class Measured:
    """Means of one decode step, in microseconds."""

    costs: Costs
    waiting: float
    """The host's wait for results."""
    step: float

    @property
    def occupancy(self) -> float:
        """Device time of forwards over wall time."""
        return self.costs.device / self.step


def measure(given: Any) -> list[dict[str, object]]:
    """A row for each loop: its quantities, its step, and what the model makes of the former."""
    assemblies = {
        mode: assemble(
            EngineConfig(
                model=given.model,
                device=given.device,
                host=given.host,
                dtype=given.dtype,
                graph_runner=given.graph_runner,
                loop=loop,
                fence=fence,
                max_running_requests=given.requests,
            )
        )
        for mode, (loop, fence) in MODES.items()
    }
    rounds: dict[str, list[Measured]] = {mode: [] for mode in assemblies}
    for number in range(given.rounds + 1):  # the first warms up
        for mode in list(assemblies)[:: 1 if number % 2 else -1]:
            found = serve(assemblies[mode], given.requests, given.new_tokens)
            if number:
                rounds[mode].append(found)
    for assembly in assemblies.values():
        assembly.device.close()
    return [_row(mode, each) for mode, each in rounds.items()]


def serve(assembly: Assembly, requests: int, new_tokens: int) -> Measured:
    """Serve `requests` at once, from the prefill to the last token, and watch."""
    core, device = assembly.scheduler, assembly.device
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    for number, prompt in enumerate(token_ids(0, [PROMPT] * requests, 256)):
        context, tokenizer = assembly.wired.limits.max_context, assembly.model.tokenizer
        core.add(
            Request.new(
                number, None, prompt, params, tokenizer=tokenizer, max_context=context, seed=number
            )
        )
    with Recorder(device, core, max_steps=2 * new_tokens + requests) as recorder:
        while core.has_work:
            assembly.loop(core)
        timeline = recorder.timeline()
    failed = [request.error for request in core.news if request.error is not None]
    core.news.clear()
    if failed:
        raise failed[0]
    return _means(timeline, inline=getattr(device, "mode", None) == "inline")


def _means(timeline: Timeline, *, inline: bool) -> Measured:
    steps = timeline.steps[FIRST:-LAST]
    numbers = {step.number for step in steps}
    works = [s for s in timeline.slices if s.lane != HOST and not s.inside]
    writes = [s for s in works if s.step in numbers and s.kind in {"copy", "write"}]
    written: dict[int, int] = {}
    for each in writes:
        written[each.step] = max(written.get(each.step, 0), each.submitted)
    iterations = [
        _iteration(calls, written, works if inline else ())
        for calls in _iterations(timeline)
        if any(call.step in numbers for call in calls if call.kind == "launch")
    ]
    pre, post, results, waiting = (fmean(part) / 1e3 for part in zip(*iterations, strict=True))
    forwards = [(step.begin or 0, step.fence_at or step.end or 0, step.end or 0) for step in steps]
    costs = Costs(
        device=fmean(end - begin for begin, _, end in forwards) / 1e3,
        writes=sum(s.end - s.begin for s in writes) / len(steps) / 1e3,
        reads=fmean(fence - begin for begin, fence, _ in forwards) / 1e3,
        pre=pre,
        post=post,
        results=results,
    )
    begins = [calls[0].begin for calls in _iterations(timeline)]
    wall = begins[FIRST + len(steps)] - begins[FIRST]
    return Measured(costs, waiting, wall / len(steps) / 1e3)


def _iterations(timeline: Timeline) -> list[list[Slice]]:
    """What the host did, by iterations of the loop; each begins with choosing a batch."""
    found: list[list[Slice]] = []
    for each in timeline.slices:
        if each.lane == HOST and each.kind == "prepare":
            found.append([])
        if each.lane == HOST:
            found[-1].append(each)
    return found


def _iteration(
    calls: Sequence[Slice], written: dict[int, int], away: Sequence[Slice]
) -> tuple[int, int, int, int]:
    """(H_pre, H_post, H_res, the wait for results) of one iteration, in nanoseconds.

    written: when the last write of each step was submitted. away: works that ran on the host's own
    thread, in which its clock stands still.
    """

    def spent(begin: int, end: int) -> int:
        within = (min(end, s.end) - max(begin, s.begin) for s in away)
        return end - begin - sum(part for part in within if part > 0)

    of = {call.kind: call for call in calls}
    launch, collect = of["launch"], of["collect"]
    submitted = written.get(launch.step, launch.end)
    waited = of["wait"].end if "wait" in of else collect.begin
    return (
        spent(calls[0].begin, submitted),
        spent(submitted, launch.end),
        spent(launch.end, collect.begin) + spent(waited, collect.end),
        spent(collect.begin, waited),
    )


def _row(mode: str, rounds: list[Measured]) -> dict[str, object]:
    """The means over the rounds, times in milliseconds."""
    each = [attrs.astuple(found.costs) for found in rounds]
    costs = Costs(*(fmean(values) / 1e3 for values in zip(*each, strict=True)))
    step = fmean(found.step for found in rounds) / 1e3
    model = predicted(costs, mode, sync=False)
    return {
        "loop": mode,
        "D": costs.device,
        "reads": None if mode == "normal" else costs.reads,
        "W": costs.writes,
        "H_pre": costs.pre,
        "H_post": costs.post,
        "H_res": costs.results,
        "host waits": fmean(found.waiting for found in rounds) / 1e3,
        "occupancy": costs.device / step,
        "step": step,
        "model": model,
        "one by one": costs.device + costs.host + costs.writes,
    }
