"""The race detector on real devices and whole engines: one run tells, whatever its timing was."""

from __future__ import annotations

import random
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch
from interleavings import races_by_rule, races_on, random_program
from parts import engine
from torch.utils._pytree import tree_leaves
from toys import CONTEXT, Inside, Late, Replaying, RowMajor

import warcore.launcher
import warcore.runner
from warcore import SamplingParams, SharedReadEnds
from warcore.device import Observer, Ticket
from warcore.device.host import HostDevice, host_device
from warcore.device.operations import OperationMode
from warcore.device.virtual import VirtualDevice
from warcore.errors import DeviceError
from warcore.fence import ReadFence
from warcore.launcher import Launcher
from warcore.shared import SharedBuffers
from warcore.staging import StagingRing
from warcore.testkit.detectors.races import LEAST_SWEEP, RaceDetector
from warcore.testkit.detectors.several import Several
from warcore.testkit.engines.enginetouches import EngineTouches, watch_races, watched_tensors

HOSTS = ["inline", "threads", "seeded:3", "seeded:8", "virtual"]


def opened(host):
    return VirtualDevice() if host == "virtual" else host_device(host)


# ---- random programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["inline", "seeded", "threads", "virtual"])
@pytest.mark.parametrize("more", [{}, {"streams": "SFT"}, {"host": True}])
def test_a_device_gives_the_verdict_of_the_rules_alone(host, more):
    draw = random.Random(5)
    for seed in range(60):
        program = random_program(draw, **more)
        device = VirtualDevice() if host == "virtual" else HostDevice(host, seed)
        with device, RaceDetector(device) as detector, device.watched_by(detector):
            assert races_on(device, detector, program) == races_by_rule(program), (seed, program)


# ---- single rules --------------------------------------------------------------------------------


@pytest.fixture(params=HOSTS)
def device(request):
    with opened(request.param) as device:
        yield device


@pytest.fixture
def detector(device):
    with RaceDetector(device) as detector, device.watched_by(detector):
        yield detector


@pytest.fixture
def streams(device):
    return device.stream("schedule"), device.stream("forward")


@pytest.fixture
def writes(detector):
    return partial(detector.touch, "x", "write", 0, 8)


@pytest.fixture
def reads(detector):
    return partial(detector.touch, "x", "read", 0, 8)


def kinds(detector):
    return [race.kind for race in detector.races]


def test_two_streams_race_until_a_ticket_orders_them(device, detector, streams, writes, reads):
    schedule, forward = streams
    forward.submit(reads)
    ticket = device.event().record(forward)
    schedule.wait(ticket)
    schedule.submit(writes)
    device.synchronize()
    assert detector.races == ()
    forward.submit(reads)
    schedule.submit(writes)
    device.synchronize()
    assert kinds(detector) == ["WAR"]


def test_an_idle_device_orders_everything(device, detector, streams, writes):
    for stream in streams:
        stream.submit(writes)
        device.synchronize()
        writes()
    assert detector.races == ()


def test_a_latch_is_no_order(device, detector, streams, writes, reads):
    """On CUDA whoever waits for it has found it open, and the read before it may still run."""
    schedule, forward = streams
    latch = device.latch()

    def forwards():
        reads()
        latch.set()

    def schedules():
        latch.wait()
        writes()

    forward.submit(forwards)
    schedule.submit(schedules)
    device.synchronize()
    assert kinds(detector) == ["WAR"]


def test_taking_the_outcome_of_work_does_not_wait_for_what_it_launched(
    device, detector, streams, writes, reads
):
    schedule, forward = streams
    forward.submit(reads).result()
    schedule.submit(writes)
    device.synchronize()
    assert kinds(detector) == ["WAR"]


def test_taking_the_outcome_of_work_comes_after_its_host_code(device, detector, streams, writes):
    _, forward = streams
    forward.submit(partial(writes, by_host=True)).result()
    writes()
    assert detector.races == ()


@pytest.mark.parametrize("ask", [Ticket.query, Ticket.synchronize])
def test_host_memory_may_be_refilled_once_the_copy_is_known_to_have_run(detector, streams, ask):
    """Within submitted work too, where the device does not report a query."""
    _, forward = streams
    device, tickets = detector._device, []
    writes, reads = (partial(detector.touch, "x", kind, 0, 8) for kind in ("write", "read"))

    def step():
        for ticket in tickets:
            ask(ticket)
        writes(by_host=True)
        reads()
        tickets.append(device.event().record())

    for _ in range(3):
        forward.submit(step)
    device.synchronize()
    assert detector.races == ()


def test_host_memory_that_work_refills_early_is_a_race_although_the_stream_has_an_order(
    device, detector, streams, writes, reads
):
    _, forward = streams

    def step():
        writes(by_host=True)
        reads()

    forward.submit(step)
    forward.submit(step)
    device.synchronize()
    (race,) = detector.races
    assert race.kind == "WAR"
    assert race.streams == ("forward", "forward")
    assert "nothing orders the write of the host code of" in race.missing


def test_a_marker_orders_what_each_replay_did_before_it_and_nothing_after(device, streams):
    schedule, forward = streams
    marker, graph = device.event(external=True), device.graph()
    tensors = {"early": torch.zeros(4), "late": torch.zeros(4)}

    def reads():
        tensors["early"].add(1)
        marker.record()
        tensors["late"].add(1)

    def replays():
        ticket = marker.rearm()
        graph.replay()
        return ticket

    def writes():
        for tensor in tensors.values():
            tensor.fill_(1)
        return device.event().record()

    forward.submit(graph.capture, reads).result()
    with (
        RaceDetector(device) as detector,
        device.watched_by(Several(detector, Sees(detector, tensors))),
    ):
        for _ in range(3):
            schedule.wait(forward.submit(replays).result())
            forward.wait(schedule.submit(writes).result())
        device.synchronize()
    (race,) = detector.races
    assert (race.buffer, race.kind, race.count) == ("late", "WAR", 3)


def test_what_is_captured_is_no_access_before_it_is_replayed(device, detector, streams, reads):
    schedule, forward = streams
    graph = device.graph()
    forward.submit(graph.capture, reads)
    schedule.submit(detector.touch, "x", "write", 0, 8)
    device.synchronize()
    assert detector.races == ()


def test_each_pair_of_origins_is_reported_once_with_a_count(device, detector, streams):
    schedule, forward = streams
    for _ in range(5):
        forward.submit(partial(detector.touch, "x", "read", 0, 16, operation="gather"))
        schedule.submit(partial(detector.touch, "x", "write", 8, 24, operation="fill"))
    device.synchronize()
    assert set(kinds(detector)) <= {"WAR", "RAW"}
    assert sum(race.count for race in detector.races) >= 5
    for race in detector.races:
        assert (race.start, race.stop) == (8, 16)
        assert {race.first.operation, race.second.operation} == {"gather", "fill"}


def test_memory_of_a_long_run_is_bounded_by_what_can_still_race(device, detector, streams):
    schedule, forward = streams
    done = device.event()
    for step in range(400):
        schedule.submit(detector.touch, "x", "write", 8 * step, 8 * step + 8)
        forward.wait(device.event().record(schedule))
        forward.submit(detector.touch, "x", "read", 8 * step, 8 * step + 8)
        done.record(forward).synchronize()
    assert detector.races == ()
    assert detector.remembered <= LEAST_SWEEP + 1


def test_leaving_the_detector_leaves_no_trace(device):
    event = device.event()
    before = dict(vars(device)), dict(vars(event))
    with RaceDetector(device) as detector:
        detector.hear(event)
        assert vars(event) != before[1]
    assert (vars(device), vars(event)) == before


# ---- engines -------------------------------------------------------------------------------------


class Uses(OperationMode):
    """Sees the ATen operations that are given memory of a named tensor, and what they do to it.

    host: the names of memory that device copies read: all else is done to it by host code.
    """

    def __init__(self, detector, tensors, host):
        super().__init__()
        self.detector, self.host = detector, host
        self.names = {t.untyped_storage().data_ptr(): name for name, t in tensors.items()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        given = [*zip(arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
        asynchronous = func is torch.ops.aten.copy_.default and any(args[2:])
        for argument, value in given:
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor) and not (func.is_view or tensor.is_mkldnn):
                    self.use(str(func), argument, tensor, by_host=not asynchronous)
        return func(*args, **kwargs)

    def use(self, operation, argument, tensor, *, by_host):
        name = self.names.get(tensor.untyped_storage().data_ptr())
        if name is not None:
            written = argument.alias_info is not None and argument.alias_info.is_write
            start = tensor.storage_offset() * tensor.element_size()
            self.detector.touch(
                name,
                "write" if written else "read",
                start,
                start + tensor.nbytes,
                operation=operation,
                by_host=by_host and name in self.host,
            )


class Sees(Observer):
    """An observer that watches the threads of submitted work, and tells a detector of its uses."""

    def __init__(self, detector, tensors, host=()):
        self.uses, self.modes = partial(Uses, detector, tensors, host), {}

    def started(self, stream, pending):
        mode = self.modes[id(pending)] = self.uses()
        mode.__enter__()

    def finished(self, stream, pending):
        self.modes.pop(id(pending)).__exit__(None, None, None)


@contextmanager
def seen(host, host_memory=lambda backend: {}, **config):
    """An engine of toys and a detector that sees all that its parts and its backend do."""
    device = opened(host)
    with (
        engine(device=device, **{**SIZES, **config}) as running,
        RaceDetector(device) as detector,
        EngineTouches(running, detector),
    ):
        pinned = host_memory(running._assembly.runner._backend)
        sees = Sees(detector, {**watched_tensors(running), **pinned}, pinned)
        with device.watched_by(Several(detector, sees)):
            yield running, detector
            device.synchronize()


PROMPTS = ["abcdefg", "de", "fghijklmnopq", "x", "stuv"]
PARAMS = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (9, 4, 7, 12, 2)]
SIZES = {"max_running_requests": 3, "kv_pages": 14, "context_length": 32, "prefill_chunk": 6}


def races_of(host, **config):
    # Some schedules feed a step what a race has destroyed, and it dies of that.
    with seen(host, **config) as (running, detector), suppress(IndexError):
        running.generate(PROMPTS, PARAMS, raw=True)
    return detector.races


def told(races):
    return "\n".join(map(str, races))


@pytest.fixture(params=HOSTS)
def host(request):
    return request.param


@pytest.mark.parametrize("config", [{}, {"graph_runner": Replaying}, {"mixed": True}], ids=str)
@pytest.mark.parametrize("backend", [RowMajor, Inside, Late])
def test_an_honest_engine_has_no_race(host, backend, config):
    races = races_of(host, backend=backend, **config)
    assert races == (), told(races)


def test_the_normal_loop_has_no_race_whatever_a_backend_says(host):
    races = races_of(host, backend=Lying, loop="normal")
    assert races == (), told(races)


class Lying(Late):
    """Reads in the body, and says that it does not."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY


@pytest.mark.parametrize("config", [{}, {"graph_runner": Replaying}], ids=str)
def test_a_backend_that_reads_later_than_it_says_is_found_in_one_run(host, config):
    races = races_of(host, backend=Lying, **config)
    assert {(race.buffer, race.kind) for race in races} == {("req_to_token", "WAR")}
    assert {race.first.phase for race in races} <= {"body", "replay"}
    assert {race.second.stream for race in races} == {"schedule"}


def test_a_coarse_fence_orders_what_a_lie_does_not(host):
    races = races_of(host, backend=Lying, fence="coarse")
    assert races == (), told(races)


def test_a_core_that_fences_in_front_of_a_replay_that_still_reads_is_found(host, monkeypatch):
    monkeypatch.setattr(warcore.runner, "resolve", lambda *_, **__: SharedReadEnds.PRE_REPLAY)
    races = races_of(host, backend=Inside, graph_runner=Replaying)
    assert {(race.buffer, race.kind) for race in races} == {("req_to_token", "WAR")}
    assert {race.first.phase for race in races} == {"replay"}


class Failing(RowMajor):
    """Fails in every third step, in the middle of it."""

    calls = 0

    def forward(self, q, k, v, layer, batch):
        out = super().forward(q, k, v, layer, batch)
        type(self).calls += 1
        if self.calls % 6 == 0:
            raise RuntimeError("planned")
        return out


def test_steps_that_fail_and_requests_that_end_early_race_with_nothing(host):
    with seen(host, backend=Failing, kv_pages=10) as (running, detector):
        numbers = [running.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
        running.step()
        running.abort(numbers[1])
        while running.has_work:
            running.step()
    assert Failing.calls
    assert detector.races == (), told(detector.races)


@pytest.mark.parametrize("seed", range(20))
def test_no_seed_hides_the_lie_and_none_shows_an_honest_backend(seed):
    assert races_of(f"seeded:{seed}", backend=Lying)
    assert races_of(f"seeded:{seed}", backend=Inside, graph_runner=Replaying) == ()


def test_the_lie_is_found_although_the_tokens_are_right():
    with engine(backend=RowMajor, **SIZES) as running:
        right = running.generate(PROMPTS, PARAMS, raw=True)
    with seen("inline", backend=Lying) as (running, detector):
        shown = running.generate(PROMPTS, PARAMS, raw=True)
    assert [one.output_ids for one in shown] == [one.output_ids for one in right]
    assert detector.races


def test_the_report_names_the_steps_and_the_order_that_is_missing():
    races = races_of("inline", backend=Lying)
    race = next(race for race in races if race.second.operation == "SharedBuffers._write_pages")
    assert race.first.operation == "aten.index_select.default"
    late = "step 2 (SharedBuffers._write_pages on stream schedule)"
    early = "step 1 (Step.run on stream forward) in phase body by aten.index_select.default"
    assert race.missing == f"nothing orders the write of {late} after the read of {early}"
    assert race.streams == ("forward", "schedule")


def test_a_barrier_that_waits_for_nothing_is_found_in_one_run(host, monkeypatch):
    def unfenced(fence, stream):
        fence._latch.wait()
        with fence._lock:
            held, fence._held, fence._taken = fence._held, None, True
        held.discard()

    monkeypatch.setattr(ReadFence, "wait", unfenced)
    races = races_of(host, backend=RowMajor)
    assert {(race.buffer, race.kind) for race in races} == {("req_to_token", "WAR")}
    assert "out_graph" in {race.first.phase for race in races}


@pytest.mark.parametrize("host", ["inline", "virtual"])
def test_a_forward_that_does_not_wait_for_its_inputs_is_found(host):
    """Only where work runs at once does it find them there."""
    with seen(host) as (running, detector):
        running._assembly.scheduler.launcher._forward.wait = lambda ticket: None
        running.generate(PROMPTS, PARAMS, raw=True)
    assert {race.buffer for race in detector.races} == {"req_to_token", "step inputs"}
    assert "RAW" in {race.kind for race in detector.races}


def test_a_look_at_the_relay_from_the_schedule_stream_is_found_in_one_run(host, monkeypatch):
    write, relays = SharedBuffers._write_pages, []

    def looks(shared, places, pages):
        write(shared, places, pages)
        relays[0].lengths.index_select(0, torch.zeros(1, dtype=torch.int64))

    monkeypatch.setattr(SharedBuffers, "_write_pages", looks)
    with seen(host, backend=RowMajor) as (running, detector):
        relays.append(running._assembly.scheduler.launcher._step._relay)
        running.generate(PROMPTS, PARAMS, raw=True)
    races = detector.races
    assert {race.buffer for race in races} == {"relay.lengths"}
    assert any(race.second.stream == "schedule" and race.kind == "RAW" for race in races)


def test_a_staging_slot_that_is_refilled_early_is_found_in_one_run(host, monkeypatch):
    def hasty(ring, words):
        (slot,) = ring.slots
        return slot

    monkeypatch.setattr(warcore.launcher, "StagingRing", partial(StagingRing, words=512, depth=1))
    assert races_of(host, backend=RowMajor) == ()
    monkeypatch.setattr(StagingRing, "_vacant", hasty)
    races = races_of(host, backend=RowMajor)
    (race,) = (race for race in races if race.buffer == "staging of the launcher")
    assert race.kind == "WAR"
    assert race.second_work.startswith("the host in step ")


class Staged(RowMajor):
    """Brings numbers of its own to the device in every step."""

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        self.ctx.static("lens", (CONTEXT,), torch.int64)
        for _ in range(5):
            self.ctx.stage("lens", list(range(batch.padded_size)))


def test_what_a_backend_stages_through_the_core_is_in_order(host):
    races = races_of(host, backend=Staged)
    assert races == (), told(races)


def test_a_ring_behind_ctx_stage_that_does_not_wait_is_found(host, monkeypatch):
    """On the host device no schedule shows it: the stream copies before its next work fills."""

    def hasty(ring, words):
        slot = ring.slots[ring._next]
        ring._next = (ring._next + 1) % len(ring.slots)
        return slot

    monkeypatch.setattr(StagingRing, "_vacant", hasty)
    races = races_of(host, backend=Staged)
    assert ("staging of the backend", "WAR") in {(race.buffer, race.kind) for race in races}


class Pinning(RowMajor):
    """Fills pinned memory of its own in every step, whether or not the last copy has read it."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.pinned = torch.zeros(8, dtype=torch.int64)

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        self.pinned.fill_(batch.padded_size)
        self.ctx.static("sizes", (8,), torch.int64).copy_(self.pinned, non_blocking=True)


def test_pinned_memory_that_a_backend_refills_early_is_found_in_one_run(host):
    """On the host device no schedule shows it: there the copy has ended when the call returns."""
    races = races_of(host, backend=Pinning, host_memory=lambda b: {"pinned": b.pinned})
    (race,) = races
    assert (race.buffer, race.kind, race.streams) == ("pinned", "WAR", ("forward", "forward"))
    assert race.second_work.startswith("the host code of step ")


def test_results_that_are_taken_early_are_found(host, monkeypatch):
    collect = Launcher.collect

    def early(launcher, launch):
        launch.pending.result()
        launch.copied = Unwaited(launch.copied)
        return collect(launcher, launch)

    monkeypatch.setattr(Launcher, "collect", early)
    races = races_of(host)
    assert ("results", "RAW") in {(race.buffer, race.kind) for race in races}


class Unwaited:
    """A ticket that nobody waits for."""

    def __init__(self, ticket):
        self.ticket = ticket

    def synchronize(self):
        pass

    def __eq__(self, other):
        return self.ticket == other

    __hash__ = None


def test_watching_needs_no_source_of_its_own_to_judge_the_core(host):
    with engine(device=opened(host), **SIZES) as running:
        with watch_races(running) as detector:
            running.generate(PROMPTS, PARAMS, raw=True)
        assert detector.races == ()
        assert detector.remembered
        running.generate(PROMPTS[:1], PARAMS[:1], raw=True)


def test_a_watched_device_is_refused():
    with engine() as running, watch_races(running), pytest.raises(DeviceError, match="already"):
        running.trace()
    with engine() as running, running.trace(), pytest.raises(DeviceError, match="already"):
        watch_races(running).__enter__()


def test_an_engine_is_as_before_when_nobody_watches_any_more():
    with engine() as running:
        launcher = running._assembly.scheduler.launcher
        parts = [
            launcher,
            launcher._step,
            launcher._shared,
            launcher._staging,
            launcher._step._relay,
        ]
        before = [set(vars(part)) for part in parts]
        with watch_races(running):
            assert [set(vars(part)) for part in parts] != before
        assert [set(vars(part)) for part in parts] == before
