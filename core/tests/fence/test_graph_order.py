"""Where a runner records and offers in a step that is replayed, row by row."""

from __future__ import annotations

import attrs
import pytest
import torch
from parts import (
    TABLES,
    LoggingDevice,
    LoggingFence,
    batch_of,
    capture,
    held,
    named,
    runner_of,
)
from replays import (
    ROWS,
    Attending,
    Gate,
    Gated,
    bucket_of,
    check_order,
    check_position,
    check_prefill_bucket,
    check_prefill_gates,
    logged,
    prefill,
)
from toys import Replaying

from warcore import Bucket, ForwardMode, SharedReadEnds
from warcore.device.host import host_device
from warcore.fence import FenceReason, ReadFence

HOSTS = ["inline", "threads", *(f"seeded:{n}" for n in range(12))]


@pytest.mark.parametrize(("row", "mode", "lack"), ROWS)
def test_the_event_goes_where_the_latest_vote_and_the_marker_say(row, mode, lack):
    check_order(Replaying, row, mode, lack)


@pytest.mark.parametrize(("row", "mode", "lack"), ROWS)
def test_the_fence_is_reached_where_the_reads_end(row, mode, lack):
    check_position(Replaying, row, mode, lack)


# ---- prefills ------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLES["prefill_buckets"], ids=named)
def test_a_prefill_is_replayed_unless_most_of_it_were_padding(row):
    check_prefill_bucket(Replaying, row)


def test_the_gates_of_a_replayed_prefill_come_before_the_replay_and_count_its_padding():
    check_prefill_gates(Replaying)


def test_a_step_that_asks_for_other_logits_than_its_capture_gives_runs_eagerly():
    buckets = [Bucket(ForwardMode.EXTEND, 1, 4, 64), bucket_of(ForwardMode.DECODE)]
    with LoggingDevice([]) as device:
        runner = runner_of(device, Gated(SharedReadEnds.PRE_REPLAY, Gate()), model=Attending())
        capture(device, device.stream("forward"), runner, buckets, Replaying)
        chosen, decode = runner.captures.bucket_for, batch_of(ForwardMode.DECODE)
        assert chosen(prefill(4)) is not None
        assert chosen(attrs.evolve(prefill(4), logits_at=None)) is None
        assert chosen(decode) is not None
        assert chosen(attrs.evolve(decode, logits_at=torch.zeros(1, dtype=torch.int64))) is None


# ---- step after step -----------------------------------------------------------------------------


def run(device, runner, stream, batch):
    """One launch of `batch`, its fence closed and waited for; the fence."""
    fence = ReadFence(device, batch.mode)
    fence.expect(runner, batch.mode)
    runner.lend(fence)
    pending = stream.submit(runner.execute, batch)
    fence.close(device.event().record(stream), pending.error)
    fence.wait(stream)
    return fence


@pytest.mark.parametrize("vote", list(SharedReadEnds), ids=lambda vote: vote.name)
def test_eager_and_replayed_steps_alternate_and_leave_no_ticket(vote):
    mode, log = ForwardMode.DECODE, []
    with LoggingDevice(log) as device:
        runner = runner_of(device, Gated(vote, Gate(), log), model=Attending())
        stream = device.stream("forward")
        capture(device, stream, runner, [bucket_of(mode)], logged(Replaying, log))
        for size in (1, 3, 2, 4, 5, 1, 1, 3, 3, 2):
            log.clear()
            fence = run(device, runner, stream, batch_of(mode, size=size))
            assert log.count("replay") == (size <= 2)
            assert log.count("in_graph") == (size > 2)
            assert (fence.reason is FenceReason.FINE) == (vote is not SharedReadEnds.UNKNOWN)
            assert held(runner.ring) == 0


def test_two_launches_may_hold_the_tickets_of_one_marker():
    mode = ForwardMode.DECODE
    with LoggingDevice([]) as device:
        runner = runner_of(device, Gated(SharedReadEnds.IN_REPLAY, Gate()), model=Attending())
        stream = device.stream("forward")
        capture(device, stream, runner, [bucket_of(mode), bucket_of(mode, rows=1)], Replaying)
        fences = []
        for size in (1, 2):
            fence = LoggingFence(device, mode)
            fence.expect(runner, mode)
            runner.lend(fence)
            stream.submit(runner.execute, batch_of(mode, size=size)).result()
            fences.append(fence)
        one, other = (fence.offers[0].ticket for fence in fences)
        assert one.event is other.event
        assert one.generation < other.generation
        for fence in fences:
            fence.wait(stream)


def test_in_the_normal_loop_nothing_is_armed_or_recorded():
    log = []
    with LoggingDevice(log) as device:
        runner = runner_of(device, Gated(SharedReadEnds.IN_REPLAY, Gate(), log), model=Attending())
        stream = device.stream("forward")
        capture(device, stream, runner, [bucket_of(ForwardMode.DECODE)], logged(Replaying, log))
        log.clear()
        stream.submit(runner.execute, batch_of(ForwardMode.DECODE)).result()
    assert log == ["out_graph", "replay"]


# ---- a replay that fails -------------------------------------------------------------------------


class Refusing(Replaying):
    """Fails where it is told: before the replay, or in the middle of it."""

    fails = None

    def replay(self, bucket):
        if Refusing.fails == "before":
            raise RuntimeError("before")
        return super().replay(bucket)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("where", ["before", "inside", "body"])
@pytest.mark.parametrize("vote", list(SharedReadEnds), ids=lambda vote: vote.name)
def test_a_failed_replay_keeps_nobody_waiting_and_the_next_step_runs(
    monkeypatch, host, where, vote
):
    mode = ForwardMode.DECODE
    gates = {"inside": Gate(), "body": Gate()}
    with host_device(host) as device:
        runner = runner_of(
            device, Gated(vote, gates["inside"]), model=Attending(gates["body"].call)
        )
        forward, schedule = device.stream("forward"), device.stream("schedule")
        capture(device, forward, runner, [bucket_of(mode)], Refusing)

        def launch():
            """As the engine does it: the schedule stream may stand at the fence before it fails."""
            fence = ReadFence(device, mode)

            def step():
                fence.expect(runner, mode)
                runner.lend(fence)
                error = None
                try:
                    return runner.execute(batch_of(mode)).logits.clone()
                except RuntimeError as raised:
                    error = raised
                    raise
                finally:
                    fence.close(device.event().record(), error)

            replay = forward.submit(step)
            return fence, replay, schedule.submit(fence.wait, schedule)

        _, replay, write = launch()
        right = replay.result()
        write.result()
        with monkeypatch.context() as patch:
            patch.setattr(Refusing, "fails", where)
            if where != "before":
                gates[where].fail(RuntimeError(where))
            fence, replay, write = launch()
            with pytest.raises(RuntimeError, match=where):
                replay.result()
            write.result()
        assert fence.reason is FenceReason.FORWARD_ERROR
        assert held(runner.ring) == 0
        fence, replay, write = launch()
        assert torch.equal(replay.result(), right)
        write.result()
        assert fence.reason is not FenceReason.FORWARD_ERROR
        assert held(runner.ring) == 0


def test_a_replay_that_fails_before_its_marker_lets_go_whoever_stands_at_it():
    mode, gate = ForwardMode.DECODE, Gate()
    with host_device("threads") as device:
        runner = runner_of(device, Gated(SharedReadEnds.IN_REPLAY, gate), model=Attending())
        forward, schedule = device.stream("forward"), device.stream("schedule")
        capture(device, forward, runner, [bucket_of(mode)], Replaying)
        fence, there = ReadFence(device, mode), device.latch()
        fence.expect(runner, mode)
        runner.lend(fence)

        def wait():
            there.set()
            fence.wait(schedule)

        gate.shut()
        replay = forward.submit(runner.execute, batch_of(mode))
        gate.wait_for_arrival()
        write = schedule.submit(wait)
        there.wait()
        assert not write.done
        gate.fail(RuntimeError("before the marker"))
        gate.open()
        write.result()
        with pytest.raises(RuntimeError, match="before the marker"):
            replay.result()
