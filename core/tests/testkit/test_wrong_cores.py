"""Wrong cores: a piece of the core is replaced, and the detector of that mistake names it.

The kit judges plugins with these detectors; what they find here is a core that no plugin can mend.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from wrong_plugins.backends.right import Snapshot

import warcore.gates
import warcore.launcher
import warcore.runner
import warcore.scheduler
from warcore import PluginRecord, SharedReadEnds
from warcore.fence import FenceReason, ReadFence
from warcore.launcher import Launcher
from warcore.relay import Relay
from warcore.shared import SharedBuffers
from warcore.staging import StagingRing
from warcore.step import Step
from warcore.testkit.engines.engineraces import races_of
from warcore.testkit.engines.workload import REQUESTS, Workload
from warcore.testkit.outcome import Refuted
from warcore.testkit.rules import backend_engine, backend_snapshots, backends
from warcore.testkit.stands.paged import Paged
from warcore.testkit.stands.recorders import Recording
from warcore.testkit.stands.walk import quiet_torch
from warcore.testkit.subject import Subject

FEW = REQUESTS[:4]
"""Enough for a row to be given to somebody else, and more than run at once."""


class Plain(Paged):
    """Serves the kit's plain shapes; reads in the graph."""

    vote = SharedReadEnds.IN_REPLAY

    @classmethod
    def why_not(cls, spec):
        return ["windows or trees"] if spec.tree or spec.windows != {None} else []


class Behind(Plain):
    vote = SharedReadEnds.POST_REPLAY


def subject_of(cls, **more):
    return Subject(PluginRecord.of_class("backend", cls), cls, **more)


def races(backend=Plain, runner="none", **fields):
    """{(buffer, kind)}, of a whole engine."""
    with quiet_torch():
        found = races_of(Workload(backend=backend, graph_runner=runner, requests=FEW), **fields)
    return {(race.buffer, race.kind) for race in found.races}


def refuted(rule, cls=Plain, **more):
    with pytest.raises(Refuted) as raised:
        rule(subject_of(cls, **more))
    return raised.value.failure


WITH_GRAPHS = pytest.mark.parametrize("runner", ["none", Recording], ids=["eager", "graphs"])


@WITH_GRAPHS
def test_the_core_as_it_is_has_no_race(runner):
    assert races(runner=runner) == set()


# ---- the read-done event is elsewhere ------------------------------------------------------------


@pytest.fixture
def publishes_early(monkeypatch):
    """IN_REPLAY is published as PRE_REPLAY, as the oldest design did without a marker."""
    monkeypatch.setattr(warcore.runner, "resolve", lambda *_, **__: SharedReadEnds.PRE_REPLAY)


@pytest.mark.usefixtures("publishes_early")
def test_a_core_that_publishes_before_the_replay_races_with_the_next_write():
    assert races(runner=Recording) == {("req_to_token", "WAR")}


@pytest.mark.usefixtures("publishes_early")
def test_a_core_that_publishes_before_the_replay_has_its_event_in_front_of_the_metadata():
    failure = refuted(backend_engine.event_position, cells="decode-unbroken-1*")
    assert failure.declared == "IN_REPLAY for decode steps"
    assert "before the end of the in-graph metadata: too early" in failure.observed
    assert failure.seen_by == ("event position",)


@pytest.mark.usefixtures("publishes_early")
def test_a_core_that_publishes_before_the_replay_lets_poison_into_the_output():
    failure = refuted(backends.overwritten, cells="decode-unbroken-40+1-*")
    assert failure.seen_by == ("poison",)


@pytest.mark.usefixtures("publishes_early")
def test_a_core_that_publishes_before_the_replay_changes_answers_in_some_schedule():
    failure = refuted(backend_engine.schedules, Behind, cells="seed*-unbroken")
    assert failure.seen_by == ("seeded schedules",)


@pytest.fixture
def publishes_late(monkeypatch):
    monkeypatch.setattr(warcore.runner, "resolve", lambda *_, **__: SharedReadEnds.POST_REPLAY)


@pytest.mark.usefixtures("publishes_late")
def test_a_core_that_publishes_at_the_end_of_the_replay_is_sound_and_too_late():
    assert races(runner=Recording) == set()
    failure = refuted(backend_engine.event_position, cells="decode-unbroken-*")
    assert "not done at the first layer's attention: too late" in failure.observed


def test_a_core_that_takes_the_marker_of_the_replay_before_is_found_by_its_position(monkeypatch):
    """It waits for a record that has been passed: nothing is armed when the ticket is offered."""
    replay = warcore.runner.PublishingRunner._replay_past

    def stale(runner, marker, batch, bucket):
        last = marker.rearm()
        marker.disarm()
        offer = runner._offer_ticket
        runner._offer_ticket = lambda mode, _: offer(mode, last)
        try:
            return replay(runner, marker, batch, bucket)
        finally:
            del runner._offer_ticket

    monkeypatch.setattr(warcore.runner.PublishingRunner, "_replay_past", stale)
    failure = refuted(backend_engine.event_position, cells="decode-unbroken-*")
    assert failure.observed == "the event is never done"
    assert ("req_to_token", "WAR") in races(runner=Recording)


def test_a_core_that_takes_a_hook_that_raised_for_one_that_copied_is_found(monkeypatch):
    """The layers go on to read what the hook did not copy; their output alone is right."""
    reads_have_ended = warcore.gates.reads_have_ended

    def believes(*args):
        verdict = reads_have_ended(*args)
        failed = verdict[0] is FenceReason.SNAPSHOT_ERROR
        return (FenceReason.FINE, "") if failed else verdict

    monkeypatch.setattr(warcore.gates, "reads_have_ended", believes)
    failure = refuted(backend_snapshots.snapshot_may_fail, Snapshot, cells="extend-none-0+6-*")
    assert "after its hook raised the fence is fine" in failure.observed


# ---- the schedule stream does not wait -----------------------------------------------------------


@pytest.fixture
def unfenced(monkeypatch):
    """The barrier takes the ticket and waits for nothing."""

    def wait(fence, stream):
        fence._latch.wait()
        with fence._lock:
            held, fence._held, fence._taken = fence._held, None, True
        held.discard()

    monkeypatch.setattr(ReadFence, "wait", wait)


@WITH_GRAPHS
@pytest.mark.usefixtures("unfenced")
def test_a_barrier_that_waits_for_nothing_races_with_the_reads(runner):
    assert races(runner=runner) == {("req_to_token", "WAR")}


def test_a_loop_without_its_barrier_is_found(monkeypatch):
    monkeypatch.setattr(warcore.scheduler.Scheduler, "barrier", lambda core, launch: None)
    assert ("req_to_token", "WAR") in races()


def test_a_forward_that_does_not_wait_for_what_was_prepared_is_found(monkeypatch):
    launch = Launcher.launch

    def hasty(launcher, *args, **named):
        launcher._forward.wait = lambda ticket: None
        return launch(launcher, *args, **named)

    monkeypatch.setattr(Launcher, "launch", hasty)
    found = races()
    assert {("req_to_token", "RAW"), ("step inputs", "RAW")} <= found


# ---- reads and writes on the wrong stream --------------------------------------------------------


@pytest.fixture
def relays(monkeypatch):
    """The relay of the engine that is built next."""
    made, init = [], Relay.__init__

    def kept(relay, *args, **named):
        init(relay, *args, **named)
        made.append(relay)

    monkeypatch.setattr(Relay, "__init__", kept)
    return made


def test_a_schedule_side_read_of_what_the_forward_relays_is_found(monkeypatch, relays):
    """NGRAM's bug: a coarse fence orders the read by luck, the fine one does not."""
    write = SharedBuffers._write_pages

    def looks(shared, places, pages):
        write(shared, places, pages)
        relays[-1].lengths.index_select(0, torch.zeros(1, dtype=torch.int64))

    monkeypatch.setattr(SharedBuffers, "_write_pages", looks)
    assert {buffer for buffer, _ in races()} == {"relay.lengths"}


def test_a_coarse_fence_hides_a_schedule_side_read_from_who_looks_at_answers_only(
    monkeypatch, relays
):
    write = SharedBuffers._write_pages

    def looks(shared, places, pages):
        write(shared, places, pages)
        relays[-1].tokens.index_select(0, torch.zeros(1, dtype=torch.int64))

    monkeypatch.setattr(SharedBuffers, "_write_pages", looks)
    assert races(fence="coarse") == set()
    assert races(fence="declared") != set()


def test_a_relay_that_the_schedule_stream_writes_too_is_found(monkeypatch, relays):
    write = SharedBuffers._write_pages

    def writes(shared, places, pages):
        write(shared, places, pages)
        relays[-1].tokens[0] = 0

    monkeypatch.setattr(SharedBuffers, "_write_pages", writes)
    assert ("relay.tokens", "WAW") in races()


def test_a_table_that_the_forward_tidies_up_is_found(monkeypatch):
    """Two writers of one table, and no fence orders them: it is for reads."""
    forward = Step._forward

    def tidies(step, launch):
        forward(step, launch)
        step._batching._tables.req_to_token[-1].zero_()

    monkeypatch.setattr(Step, "_forward", tidies)
    assert {("req_to_token", "WAW")} <= races()


# ---- host memory ---------------------------------------------------------------------------------


def test_a_staging_slot_that_is_refilled_early_is_found(monkeypatch):
    def hasty(ring, words):
        (slot,) = ring.slots
        return slot

    monkeypatch.setattr(warcore.launcher, "StagingRing", partial(StagingRing, words=512, depth=1))
    assert races() == set()
    monkeypatch.setattr(StagingRing, "_vacant", hasty)
    assert ("staging of the launcher", "WAR") in races()


class Unwaited:
    """A ticket that nobody waits for."""

    def __init__(self, ticket):
        self.ticket = ticket

    def synchronize(self):
        pass

    def __eq__(self, other):
        return self.ticket == other

    __hash__ = None


def test_results_that_are_taken_before_they_are_copied_are_found(monkeypatch):
    collect = Launcher.collect

    def early(launcher, launch):
        launch.pending.result()
        launch.copied = Unwaited(launch.copied)
        return collect(launcher, launch)

    monkeypatch.setattr(Launcher, "collect", early)
    assert ("results", "RAW") in races()


# ---- the core as it is ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["overlap", "normal"])
@pytest.mark.parametrize("host", ["inline", "threads", *(f"seeded:{seed}" for seed in range(18))])
def test_the_core_itself_stays_silent(loop, host):
    assert races(runner=Recording, loop=loop, host=host) == set()
    assert races(backend=Behind, loop=loop, host=host) == set()
