"""A recorded run of the plugins in the box: what ran as a graph, and where each fence fell."""

from __future__ import annotations

import pytest

from warcore import Engine, EngineConfig, SamplingParams

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)


def recorded(**more):
    config = EngineConfig(
        model="random:tiny", dtype="float32", device="host", max_running_requests=4, **more
    )
    with Engine(config) as engine, engine.trace() as recorder:
        engine.generate(["one", "two"], PARAMS, raw=True)
        return recorder.timeline()


def phases(timeline, number):
    return [s for s in timeline.slices if (s.kind, s.step) == ("phase", number)]


@pytest.mark.parametrize("host", ["inline", "threads", "seeded:11"])
def test_a_decode_is_a_replay_between_inputs_and_sampling(host):
    timeline = recorded(host=host, graph_runner="full")
    for step in (step for step in timeline.steps if step.mode == "decode"):
        assert step.runs_as == "graph"
        names = [s.name for s in phases(timeline, step.number)]
        assert names == ["inputs", "out_graph", "replay", "sample"]


@pytest.mark.parametrize("host", ["inline", "threads", "seeded:11"])
def test_without_a_graph_runner_the_body_is_a_phase_of_its_own(host):
    timeline = recorded(host=host, graph_runner="none")
    assert {step.runs_as for step in timeline.steps} == {"eager"}
    decode = next(step for step in timeline.steps if step.mode == "decode")
    names = [s.name for s in phases(timeline, decode.number)]
    assert names == ["inputs", "out_graph", "in_graph", "body", "sample"]


@pytest.mark.parametrize("runner", ["full", "none"])
def test_a_fine_fence_falls_before_the_layers(runner):
    timeline = recorded(graph_runner=runner)
    for step in (step for step in timeline.steps if step.mode == "decode"):
        assert step.fence == "fine"
        layers = [s for s in phases(timeline, step.number) if s.name in {"replay", "body"}]
        assert step.begin < step.fence_at <= layers[0].end
