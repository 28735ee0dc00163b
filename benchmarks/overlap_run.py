"""What a real run spends where: the quantities of `overlap_model.py`, measured.

A step's quantities are means over all the decode steps of a run but the first and last few: pages
are written every 16th step only, and a mean counts that.

    D, W     from the start to the end of the work: by the clock on a host device; by timing events
             on CUDA, where D holds the gaps in which the device waits for the next kernel
    reads    from the start of a forward to the read-done record; D where no such record was seen
    H_*      by a clock that stands still while the host's own thread runs a stream's work (inline).
             On CUDA launching kernels is work of the host, and part of H_post
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import attrs
from measure import token_ids
from overlap_model import MODES, Costs, predicted
from overlap_watch import Watch

from warcore import EngineConfig, SamplingParams
from warcore.assembly import assemble
from warcore.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlap_watch import Step

    from warcore.assembly import Assembly

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
    launch, collect = core.launch, core.collect
    watch = device.observers = Watch(device)
    watch.wrap(core)
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    for number, prompt in enumerate(token_ids(0, [PROMPT] * requests, 256)):
        context, tokenizer = assembly.limits.max_context, assembly.model.tokenizer
        core.add(
            Request.new(
                number, None, prompt, params, tokenizer=tokenizer, max_context=context, seed=number
            )
        )
    while core.has_work:
        watch.begin()
        assembly.loop(core)
        watch.end()
    device.synchronize()
    device.observers = None
    core.launch, core.collect = launch, collect  # type: ignore[method-assign]
    failed = [request.error for request in core.news if request.error is not None]
    core.news.clear()
    if failed:
        raise failed[0]
    return _means(watch, device.name == "cuda")


def _means(watch: Watch, cuda: bool) -> Measured:
    counted = range(FIRST, len(watch.steps) - LAST)
    steps = [watch.steps[number] for number in counted]
    for step in steps:
        step.written = step.written or step.launched

    def between(start: Any, end: Any) -> float:
        return start.elapsed_time(end) * 1e3 if cuda else (end - start) * 1e6

    forwards, writes = [], 0.0
    for number, stream, start, end, records in watch.work:
        if number in counted and stream == "forward":
            # The last record is that the forward is done; one before it, that its reads are.
            reads = records[0] if len(records) > 1 else end
            forwards.append((between(start, end), between(start, reads)))
        elif number in counted:
            writes += between(start, end)
    of = _mean_of(steps)
    costs = Costs(
        device=fmean(device for device, _ in forwards),
        writes=writes / len(steps),
        reads=fmean(reads for _, reads in forwards),
        pre=of(lambda step: step.written - step.begun),
        post=of(lambda step: step.launched - step.written),
        results=of(lambda step: step.collecting - step.launched + step.ended - step.waited),
    )
    wall = watch.steps[counted.stop].wall - steps[0].wall
    return Measured(costs, of(lambda step: step.waited - step.collecting), wall / len(steps) * 1e6)


def _mean_of(steps: list[Step]) -> Callable[[Callable[[Step], float]], float]:
    return lambda part: fmean(part(step) for step in steps) * 1e6


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
