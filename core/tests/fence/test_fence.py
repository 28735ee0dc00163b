"""ReadFence: who settles it, what the next write then waits for, and that nothing stays held."""

from __future__ import annotations

import logging

import pytest
import torch
from drafters import Wrong
from parts import TABLES, batch_of, engine, fences, held, launch_of, named, runner_of
from toys import RowMajor

from warcore import ForwardMode, Output, SamplingParams
from warcore.batching import Batching
from warcore.device import EventRing
from warcore.device.host import host_device
from warcore.errors import DeviceError
from warcore.fence import NEXT_STEP, FenceCounters, FenceReason, Offer, ReadFence
from warcore.hooks import read_hooks
from warcore.limits import Limits
from warcore.relay import Relay
from warcore.runner import PublishingRunner
from warcore.scope import EngineScope
from warcore.shared import SharedBuffers
from warcore.step import Step

SHORT = SamplingParams(max_new_tokens=4)
HOSTS = ["inline", "threads", "seeded:5"]


@pytest.fixture(params=HOSTS)
def device(request):
    with host_device(request.param) as device:
        yield device


# ---- who owns it: the table, through the real Step ---------------------------------------------


class Answering(Wrong):
    """Names a runner, or raises."""

    def __init__(self, word):
        self.word = word
        self.runners = {}

    def last_shared_read_runner(self, forward_batch):
        if self.word == "raises":
            raise RuntimeError("cannot say")
        return self.runners[self.word] if self.word else None


class Scripted(PublishingRunner):
    """A target in whose execute the offers of a whole step happen, as a row lists them."""

    offers: object = None

    def execute(self, batch):
        self.offers(self._fence, batch.mode)
        return Output(torch.zeros(batch.size, 3))


def step_of(device, row):
    """(Step, its target, the runners by name) for a row of the `owner` table."""
    words = row.get("answers", [row.get("owner")])
    algorithms = {f"spec_algo:a{i}": Answering(word) for i, word in enumerate(words)}
    engine = EngineScope(owners=tuple(read_hooks(algorithms)["last_shared_read_runner"]))
    target = runner_of(device, RowMajor(None))
    target.__class__ = Scripted
    runners = {"target": target, "draft": runner_of(device, RowMajor(None), role="draft")}
    for algorithm in algorithms.values():
        algorithm.runners = runners
    schedule = device.stream("schedule")
    shared = SharedBuffers(device, schedule, rows=2, context=8, page_size=4)
    done = EventRing(device, depth=3)
    relay = Relay(2, device.torch_device)
    limits = Limits(max_running=2, max_context=8, page_size=4, pages=4, prefill_chunk=4)
    batching = Batching(shared.tables, relay, limits)
    step = Step(device, target, engine, batching=batching, relay=relay, done=done)
    return step, runners, schedule


@pytest.mark.parametrize("row", TABLES["owner"], ids=named)
def test_only_the_owners_last_phase_settles(device, row):
    step, runners, schedule = step_of(device, row)
    tickets = []

    def offers(fence, mode):
        for offered in row.get("offers", []):
            ring = runners[offered["runner"]].ring
            reason = FenceReason.FINE if offered["event"] else FenceReason.UNDECLARED
            ticket = ring.record() if offered["event"] else None
            tickets.append(ticket)
            last = offered["runner"] == "draft" and offered["last"]
            phase = ForwardMode.DRAFT_EXTEND if last else mode
            offer = Offer(phase, ticket, reason, release=ring.release)
            fence.offer(runners[offered["runner"]], offer)
        if row.get("then") == "forward_raises":
            raise ArithmeticError("after the offers")

    runners["target"].offers = offers
    mode = ForwardMode.EXTEND if row.get("staged") else ForwardMode.DECODE
    fence = ReadFence(device, mode, forced_coarse=row.get("forced_coarse", False))
    launch = launch_of(mode, fence)
    device.stream("forward").submit(step.run, launch).result()
    waited = []
    take = schedule.wait
    schedule.wait = lambda ticket: (waited.append(ticket), take(ticket))
    schedule.submit(fence.wait, schedule).result()
    assert fence.reason.value == row["expect"]
    if "settles_on" in row:
        assert fence.settled_by == row["settles_on"]
        assert waited == [tickets[row["settles_on"]]]
    else:
        assert waited == [launch.copied]
    assert isinstance(launch.error, ArithmeticError) == (row.get("then") == "forward_raises")
    assert [held(runner.ring) for runner in runners.values()] == [0, 0]
    step.release(launch)
    assert held(step._done) == 0


def test_an_owner_hook_that_raises_or_answers_nonsense_is_named(device):
    step, _, _ = step_of(device, {"answers": ["raises"]})
    fence = ReadFence(device, ForwardMode.DECODE)
    step._ask_owner(launch_of(ForwardMode.DECODE, fence), batch_of(ForwardMode.DECODE))
    assert fence.detail.startswith("spec_algo:a0 raised RuntimeError")

    step, runners, _ = step_of(device, {"answers": ["target"]})
    runners["target"] = "the target, of course"
    fence = ReadFence(device, ForwardMode.DECODE)
    step._ask_owner(launch_of(ForwardMode.DECODE, fence), batch_of(ForwardMode.DECODE))
    assert fence.detail == "spec_algo:a0 named 'the target, of course'"


def test_owners_that_disagree_are_both_named(device):
    step, _, _ = step_of(device, {"answers": ["target", "draft"]})
    fence = ReadFence(device, ForwardMode.DECODE)
    step._ask_owner(launch_of(ForwardMode.DECODE, fence), batch_of(ForwardMode.DECODE))
    assert "spec_algo:a0" in fence.detail
    assert "spec_algo:a1" in fence.detail


def test_owners_that_name_the_same_runner_agree(device):
    step, runners, _ = step_of(device, {"answers": ["draft", "draft"]})
    fence = ReadFence(device, ForwardMode.DECODE)
    step._ask_owner(launch_of(ForwardMode.DECODE, fence), batch_of(ForwardMode.DECODE))
    assert fence.expects(runners["draft"], ForwardMode.DRAFT_EXTEND)
    assert fence.reason is FenceReason.NOT_PUBLISHED


# ---- what the barrier waits for ------------------------------------------------------------------


def fine(ring, mode=ForwardMode.DECODE):
    return Offer(mode, ring.record(), FenceReason.FINE, release=ring.release)


@pytest.fixture
def parts(device):
    """(device, forward, schedule, ring) of a step whose owner is `None`."""
    return device, device.stream("forward"), device.stream("schedule"), EventRing(device)


def gated():
    return pytest.mark.parametrize("device", ["threads", "seeded:5"], indirect=True)


@gated()
def test_a_fine_fence_lets_the_next_write_go_while_the_forward_still_runs(parts):
    device, forward, schedule, ring = parts
    fence, gate, log = ReadFence(device, ForwardMode.DECODE), device.latch(), []

    def run():
        fence.offer(None, fine(ring))
        gate.wait()
        log.append("the rest of the forward")
        fence.close(device.event().record())

    pending = forward.submit(run)
    schedule.submit(fence.wait, schedule)
    schedule.submit(log.append, "write").result()
    assert log == ["write"]
    gate.set()
    pending.result()


@gated()
def test_a_coarse_fence_holds_the_next_write_back_until_the_forward_is_done(parts):
    device, forward, schedule, _ = parts
    fence, gate, log = ReadFence(device, ForwardMode.DECODE), device.latch(), []

    def run():
        fence.offer(None, Offer(ForwardMode.DECODE, None, FenceReason.UNDECLARED))
        gate.wait()
        log.append("the rest of the forward")
        fence.close(device.event().record())

    forward.submit(run)
    schedule.submit(fence.wait, schedule)
    write = schedule.submit(log.append, "write")
    gate.set()
    write.result()
    assert log == ["the rest of the forward", "write"]


@gated()
def test_the_barrier_waits_for_a_fence_that_has_not_settled_yet(parts):
    device, forward, schedule, ring = parts
    fence, gate = ReadFence(device, ForwardMode.DECODE), device.latch()

    def run():
        gate.wait()
        fence.offer(None, fine(ring))

    pending = forward.submit(run)
    barrier = schedule.submit(fence.wait, schedule)
    assert not barrier.done
    gate.set()
    barrier.result()
    pending.result()
    assert held(ring) == 0


def test_an_error_after_the_offer_replaces_a_ticket_that_nobody_took(parts):
    device, forward, _, ring = parts
    fence = ReadFence(device, ForwardMode.DECODE)

    def run():
        fence.offer(None, fine(ring))
        fence.close(done := device.event().record(), error := OSError("late"))
        return done, error

    done, error = forward.submit(run).result()
    assert held(ring) == 0
    assert fence._held.ticket == done
    assert (fence.reason, fence.detail) == (FenceReason.FORWARD_ERROR, repr(error))


def test_an_error_after_the_barrier_took_the_ticket_leaves_nothing_to_wait_for(parts):
    device, forward, schedule, ring = parts
    fence = ReadFence(device, ForwardMode.DECODE)
    forward.submit(lambda: fence.offer(None, fine(ring))).result()
    schedule.submit(fence.wait, schedule).result()
    forward.submit(lambda: fence.close(device.event().record(), OSError("late"))).result()
    assert held(ring) == 0
    assert fence._held is None


def test_a_fence_is_waited_for_once(parts):
    device, forward, schedule, _ = parts
    fence = ReadFence(device, ForwardMode.DECODE)
    forward.submit(lambda: fence.close(device.event().record())).result()
    schedule.submit(fence.wait, schedule).result()
    with pytest.raises(DeviceError, match="waited for twice"):
        schedule.submit(fence.wait, schedule).result()


def test_settling_twice_is_an_error_and_the_second_ticket_is_given_back(parts):
    device, forward, schedule, ring = parts
    fence = ReadFence(device, ForwardMode.DECODE)

    def run():
        fence.offer(None, first := fine(ring))
        with pytest.raises(DeviceError, match="ran twice"):
            fence.offer(None, fine(ring))
        fence.close(device.event().record())
        return first.ticket

    first = forward.submit(run).result()
    assert fence._held.ticket == first
    schedule.submit(fence.wait, schedule).result()
    assert held(ring) == 0


def test_what_is_given_up_stays_so_whatever_is_offered_later_and_the_first_reason_stays(parts):
    device, forward, _, ring = parts
    fence = ReadFence(device, ForwardMode.DECODE)
    fence.give_up(FenceReason.DECLARATION_ERROR, "first")
    fence.give_up(FenceReason.STAGER_ERROR, "second")
    forward.submit(lambda: fence.offer(None, fine(ring))).result()
    forward.submit(lambda: fence.close(device.event().record())).result()
    assert (fence.reason, fence.detail) == (FenceReason.DECLARATION_ERROR, "first")
    assert not fence.settled
    assert held(ring) == 0


# ---- counting ------------------------------------------------------------------------------------


def test_every_coarse_reason_has_a_next_step():
    assert NEXT_STEP.keys() == set(FenceReason) - {FenceReason.FINE}


def test_each_coarse_pair_is_logged_once_with_the_plugin_and_the_remedy(caplog):
    counters = FenceCounters()
    with caplog.at_level(logging.INFO, "warcore.fence"):
        for _ in range(3):
            counters.count(ForwardMode.DECODE, FenceReason.UNDECLARED, "backend:mine")
        counters.count(ForwardMode.EXTEND, FenceReason.UNDECLARED, "backend:mine")
        counters.count(ForwardMode.EXTEND, FenceReason.FINE, "")
    assert [record.getMessage() for record in caplog.records] == [
        f"coarse fence in {mode} steps: undeclared (backend:mine). "
        "Next: declare shared_read_ends for this mode (docs/concepts.md)"
        for mode in ("DECODE", "EXTEND")
    ]
    assert counters.counts[ForwardMode.DECODE, FenceReason.UNDECLARED] == 3


def test_the_engine_counts_one_reason_for_every_overlapped_launch_and_none_in_the_normal_loop():
    with engine() as overlap:
        overlap.generate(["one", "two"], SHORT)
        assert sum(fences(overlap).values()) == overlap.stats()["steps"]
    with engine(loop="normal") as normal:
        normal.generate(["one", "two"], SHORT)
        assert fences(normal) == {}
