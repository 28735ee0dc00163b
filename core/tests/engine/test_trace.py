"""What a recorder sees of a run: every work, every wait, and where each fence fell and why."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from parts import engine, fences
from toys import Late, RowMajor
from windowed import Mapped, Windowed

from warcore import Engine, EngineConfig, SamplingParams
from warcore.device.virtual import VirtualDevice
from warcore.errors import ConfigError, DeviceError
from warcore.tracing import Recorder
from warcore.tracing.clock import WallClock
from warcore.tracing.summary import summary
from warcore.tracing.timeline import HOST, title

SHORT = SamplingParams(max_new_tokens=5, ignore_eos=True)
HOSTS = ["inline", "threads", "seeded:3", "seeded:8"]
EACH_STEP = [
    *((call, HOST) for call in ("prepare", "launch", "barrier", "collect")),
    ("wait", "schedule"),
    ("forward", "forward"),
]
METADATA, BODY, PREPARING = 40.0, 160.0, 60.0


def traced(running, prompts=("abc", "de"), params=SHORT, **more):
    """The timeline of some answers, and the answers' tokens."""
    with running, running.trace(**more) as recorder:
        answers = running.generate(list(prompts), params)
        return recorder.timeline(), [answer.output_ids for answer in answers]


def of_kind(timeline, kind, lane=None):
    return [s for s in timeline.slices if s.kind == kind and lane in {None, s.lane}]


def virtual(backend=RowMajor, **config):
    """An engine in virtual time: its metadata and its layers take time, and so do copies."""
    device = VirtualDevice()

    class Timed(backend):
        def init_forward_metadata_out_graph(self, batch):
            super().init_forward_metadata_out_graph(batch)
            device.spend(METADATA)

        def forward(self, q, k, v, layer, batch):
            device.spend(BODY / 2)
            return super().forward(q, k, v, layer, batch)

    return engine(device=device, backend=Timed, **config)


# ---- what is seen --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_each_step_has_its_forward_its_copy_its_barrier_and_what_the_host_did(host):
    timeline, _ = traced(engine(host=host))
    assert timeline.lanes == (HOST, "schedule", "forward")
    numbers = [step.number for step in timeline.steps]
    assert numbers == list(range(1, 6))
    for kind, lane in EACH_STEP:
        assert sorted({s.step for s in of_kind(timeline, kind, lane)}) == numbers, kind
    assert of_kind(timeline, "copy", "schedule")
    assert of_kind(timeline, "write", "schedule")


def test_writes_of_the_map_to_a_window_pool_are_told_by_name():
    sizes = {"kv_pages": 20, "context_length": 40}
    timeline, _ = traced(engine(model=Windowed, backend=Mapped, **sizes), ["a" * 14])
    names = {each.name for each in of_kind(timeline, "write", "schedule")}
    assert names == {"SharedBuffers._write_pages", "SharedBuffers._write_map"}


@pytest.mark.parametrize("host", HOSTS)
def test_slices_of_one_lane_never_overlap_and_parts_lie_within_their_whole(host):
    timeline, _ = traced(engine(host=host))
    for lane in timeline.lanes:
        begin = end = 0
        for s in (s for s in timeline.slices if s.lane == lane):
            assert s.begin <= s.end
            if s.inside:
                assert begin <= s.begin <= s.end <= end
            else:
                assert end <= s.begin
                begin, end = s.begin, s.end


@pytest.mark.parametrize("host", HOSTS)
def test_an_arrow_leads_from_a_record_to_a_later_wait_within_slices(host):
    timeline, _ = traced(engine(host=host))
    assert {arrow.kind for arrow in timeline.arrows} == {"fence", "inputs", "results"}
    for arrow in timeline.arrows:
        assert arrow.begin <= arrow.end
        for lane, at in ((arrow.source, arrow.begin), (arrow.target, arrow.end)):
            assert any(s.begin <= at <= s.end for s in timeline.slices if s.lane == lane)


def test_the_steps_agree_with_the_counters_of_the_engine():
    running = engine(backend=Late)
    timeline, _ = traced(running)
    seen = Counter((step.mode, step.fence) for step in timeline.steps)
    assert seen == fences(running)
    assert {step.next for step in timeline.steps if step.fence == "not_pre_replay"} == {
        "copy what prefill reads ahead, then declare PRE_REPLAY"
    }


def test_the_normal_loop_has_no_fence_and_no_barrier():
    timeline, _ = traced(engine(loop="normal"))
    assert {step.fence for step in timeline.steps} == {"none"}
    assert not of_kind(timeline, "barrier")
    assert not [arrow for arrow in timeline.arrows if arrow.kind == "fence"]


def test_a_step_that_failed_says_what_with():
    class Broken(RowMajor):
        def forward(self, q, k, v, layer, batch):
            raise ValueError("no such layer")

    timeline, _ = traced(engine(backend=Broken), ["abc"])
    assert timeline.steps[0].error == "ValueError('no such layer')"
    assert title(of_kind(timeline, "forward")[0], timeline.steps[0]).startswith("extend 1 (failed")


def test_a_phase_that_nobody_knows_is_a_part_like_any_other():
    class Telling(RowMajor):
        def forward(self, q, k, v, layer, batch):
            self.device.phase(f"layer {layer.index} </script>")
            return super().forward(q, k, v, layer, batch)

    running = engine(backend=Telling)
    Telling.device = running._assembly.device
    timeline, _ = traced(running, ["abc"])
    names = {s.name for s in of_kind(timeline, "phase", "forward")}
    assert {"layer 0 </script>", "layer 1 </script>"} <= names


# ---- when ----------------------------------------------------------------------------------------


def test_in_virtual_time_a_fine_fence_falls_right_behind_the_metadata():
    timeline, _ = traced(virtual(), ["abc"])
    for step in timeline.steps:
        assert step.end - step.begin == (METADATA + BODY) * 1000
        assert step.fence_at - step.begin == METADATA * 1000


def test_in_virtual_time_a_coarse_fence_falls_at_the_end_of_the_forward():
    timeline, _ = traced(virtual(fence="coarse"), ["abc"])
    for step in timeline.steps:
        # A nanosecond before it, so that the arrow begins within the forward.
        assert step.fence_at == step.end - 1


def test_the_barrier_lasts_until_the_fence_that_it_waits_for():
    timeline, _ = traced(virtual(), ["abc"])
    waits = {s.step: s for s in of_kind(timeline, "wait", "schedule")}
    for step in timeline.steps:
        assert waits[step.number].end == step.fence_at


@pytest.mark.parametrize(
    ("fence", "waited"), [("declared", 0.0), ("coarse", METADATA + BODY - PREPARING)]
)
def test_a_write_waited_only_for_what_was_left_when_it_came(fence, waited):
    # Pages of one token: every step writes the table.
    running = virtual(fence=fence, page_size=1)
    core, device = running._assembly.scheduler, running._assembly.device
    # Longer than the reads of a forward, and shorter than the forward.
    core.next_batch = device.taking(PREPARING, core.next_batch)
    timeline, _ = traced(running, ["abc"])
    # Behind the first step the pipeline fills; behind the last one nobody writes.
    assert [step.waited for step in timeline.steps[1:-1]] == [waited * 1000] * 3
    assert timeline.steps[-1].waited == 0
    assert summary(timeline)["schedule_waited"] == sum(s.waited for s in timeline.steps) / 1e9


def test_the_summary_adds_up_what_is_drawn():
    timeline, _ = traced(virtual(), ["abc"])
    facts = summary(timeline)
    assert facts["forward_busy"] == pytest.approx(1.0)
    assert facts["step_seconds"] == pytest.approx((METADATA + BODY) * 1e-6)
    assert (facts["fine_steps"], facts["fenced_steps"], facts["coarse"]) == (5, 5, [])
    assert facts["modes"] == {"extend": 1, "decode": 4}
    assert facts["tables_held"] == pytest.approx(METADATA / (METADATA + BODY))


@pytest.mark.parametrize(("how", "held"), [({"fence": "coarse"}, 1.0), ({"loop": "normal"}, None)])
def test_a_coarse_fence_holds_the_tables_all_the_time_and_no_fence_never(how, held):
    timeline, _ = traced(virtual(**how), ["abc"])
    assert summary(timeline)["tables_held"] == pytest.approx(held, abs=1e-4)


class Sparse(WallClock):
    """A clock that loses the stamps of streams from the third on, as a broken device does."""

    taken = 0

    def stamp(self, stream):
        if stream is not None:
            self.taken += 1
        return super().stamp(stream) if stream is None or self.taken < 3 else None

    def read(self, stamp):
        return stamp


def test_what_has_no_time_is_left_out_and_the_rest_is_drawn(monkeypatch):
    monkeypatch.setattr("warcore.tracing.recorder.clock_of", Sparse)
    timeline, _ = traced(engine())
    assert not of_kind(timeline, "forward")
    assert {step.begin for step in timeline.steps} == {None}
    assert of_kind(timeline, "launch")
    assert summary(timeline)["forward_busy"] == 0.0


# ---- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_watching_changes_no_token(host):
    with engine(host=host) as running:
        unwatched = [a.output_ids for a in running.generate(["abc", "de"], SHORT)]
    assert traced(engine(host=host))[1] == unwatched


def test_only_the_last_steps_are_kept():
    timeline, _ = traced(engine(), max_steps=2)
    assert [step.number for step in timeline.steps] == [4, 5]
    assert timeline.dropped == 3
    assert {s.step for s in timeline.slices} == {4, 5}


@pytest.mark.parametrize("host", HOSTS)
def test_lanes_stand_in_the_order_in_which_streams_were_made(host):
    timeline, _ = traced(engine(host=host), max_steps=1)
    assert timeline.lanes == (HOST, "schedule", "forward")


def test_a_closed_recorder_leaves_nothing_behind():
    with engine() as running:
        device, scheduler = running._assembly.device, running._assembly.scheduler
        before = set(vars(scheduler))
        recorder = running.trace()
        assert set(vars(scheduler)) - before == {"next_batch", "launch", "barrier", "collect"}
        recorder.close()
        recorder.close()
        assert set(vars(scheduler)) == before
        assert device.observer is None


def test_what_somebody_else_wrapped_before_is_put_back():
    with engine() as running:
        scheduler = running._assembly.scheduler
        mine = scheduler.next_batch = scheduler.next_batch
        with running.trace():
            assert scheduler.next_batch is not mine
        assert scheduler.next_batch is mine


def test_a_recorder_keeps_no_launch_that_was_collected():
    with engine() as running, running.trace() as recorder:
        running.generate(["abc"], SHORT)
        assert not [sheet for sheet in recorder._sheets if sheet.launch is not None]
        assert not recorder._submitted
        assert not recorder._running


def test_two_recorders_do_not_fit_on_one_device():
    with engine() as running, running.trace(), pytest.raises(DeviceError, match="watched already"):
        running.trace()


def test_keeping_no_step_is_refused():
    with engine() as running:
        parts = running._assembly
        with pytest.raises(ConfigError, match="max_steps=0"):
            Recorder(parts.device, parts.scheduler, max_steps=0)


def test_an_engine_that_ends_in_the_middle_leaves_what_was_seen():
    with engine(host="threads") as running, running.trace() as recorder:
        running.add_request("abc", SHORT)
        for _ in range(3):
            running.step()
        running.close()
        timeline = recorder.timeline()
    assert [step.number for step in timeline.steps] == [1, 2, 3]


@pytest.mark.gpu
def test_on_a_gpu_streams_have_times_of_their_own():
    config = EngineConfig(model="random:tiny", device="cuda")
    timeline, _ = traced(Engine(config), ["abc"])
    assert timeline.clock == "cuda"
    forwards = of_kind(timeline, "forward")
    assert len(forwards) == 5
    assert all(a.end <= b.begin for a, b in pairwise(forwards))
    assert all(arrow.begin <= arrow.end for arrow in timeline.arrows)
