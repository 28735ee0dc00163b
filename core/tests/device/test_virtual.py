"""Virtual time: sums that can be done by hand."""

from __future__ import annotations

import pytest
import torch

from warcore.device import EventRing
from warcore.device.virtual import VirtualDevice
from warcore.errors import DeviceError


def test_submitted_work_takes_the_time_of_its_stream_and_none_of_the_host():
    device = VirtualDevice({"forward": 10})
    forward, free = device.stream("forward"), device.stream("free")
    forward.submit(lambda: None)
    forward.submit(lambda: None)
    free.submit(lambda: None)
    assert (device.now, forward.clock, free.clock) == (0, 20, 0)
    assert forward.busy == 20


def test_spend_charges_whoever_runs():
    device = VirtualDevice()
    stream = device.stream("forward")
    device.spend(3)
    stream.submit(device.spend, 5)
    assert (device.now, stream.clock, stream.busy) == (3, 8, 5)


def test_a_function_that_takes_time_returns_what_it_did():
    device = VirtualDevice()
    seen = []

    def asked(value):
        seen.append(device.now)
        return value + 1

    assert device.taking(5, asked)(1) == 2
    assert (seen, device.now) == ([0], 5)


def test_work_starts_no_earlier_than_it_was_submitted():
    device = VirtualDevice({"forward": 10})
    stream = device.stream("forward")
    stream.submit(lambda: None)
    device.spend(50)
    stream.submit(lambda: None)
    assert stream.clock == 60
    assert stream.busy == 20


def test_a_wait_moves_the_stream_to_the_ticket_and_not_the_host():
    device = VirtualDevice({"forward": 10, "schedule": 1})
    forward, schedule = device.stream("forward"), device.stream("schedule")
    forward.submit(lambda: None)
    schedule.wait(device.event().record(forward))
    schedule.submit(lambda: None)
    assert schedule.clock == 11
    assert device.now == 0


def test_a_ticket_keeps_its_own_time_when_the_event_is_recorded_again():
    device = VirtualDevice({"forward": 10})
    forward, schedule, event = device.stream("forward"), device.stream("schedule"), device.event()
    forward.submit(lambda: None)
    ticket = event.record(forward)
    forward.submit(lambda: None)
    event.record(forward)
    schedule.wait(ticket)
    assert schedule.clock == 10


def test_a_record_within_work_stamps_the_time_reached_so_far():
    device = VirtualDevice()
    forward, event = device.stream("forward"), device.event()

    def step():
        device.spend(2)
        ticket = event.record()
        device.spend(8)
        return ticket

    pending = forward.submit(step)
    assert device.now == 0
    schedule = device.stream("schedule")
    schedule.wait(event.record(forward))
    assert schedule.clock == 10
    ticket = pending.result()
    assert device.now == 10
    early = device.stream("early")
    early.wait(ticket)
    assert early.clock == 2


def test_the_host_waits_in_time():
    device = VirtualDevice({"forward": 10})
    stream, event = device.stream("forward"), device.event()
    pending = stream.submit(lambda: None)
    ticket = event.record(stream)
    assert not ticket.query()
    ticket.synchronize()
    assert device.now == 10
    assert ticket.query()
    pending.result()
    assert device.now == 10
    stream.submit(lambda: None)
    device.synchronize()
    assert device.now == 20


def test_a_latch_holds_whoever_waits_until_it_opened():
    device = VirtualDevice()
    one, other, latch = device.stream("one"), device.stream("other"), device.latch()
    one.submit(lambda: (device.spend(7), latch.set()))
    other.submit(latch.wait)
    assert other.clock == 7
    with pytest.raises(DeviceError, match="never be reached"):
        device.latch().wait()


def test_each_replay_takes_the_captured_time_and_passes_the_marker_on_the_way():
    device = VirtualDevice()
    forward, graph, marker = (
        device.stream("forward"),
        device.graph(),
        device.event(external=True),
    )

    def body():
        device.spend(3)
        marker.record()
        device.spend(7)

    forward.submit(graph.capture, body).result()
    device.synchronize()
    start = device.now
    tickets = []
    forward.submit(lambda: (tickets.append(marker.rearm()), graph.replay()))
    schedule = device.stream("schedule")
    schedule.wait(tickets[0])
    assert schedule.clock == start + 3
    assert forward.clock == start + 10


def test_a_wait_for_a_replay_that_was_not_launched_is_refused():
    device = VirtualDevice()
    forward, graph, marker = (
        device.stream("forward"),
        device.graph(),
        device.event(external=True),
    )
    forward.submit(graph.capture, marker.record)
    ticket = forward.submit(marker.rearm).result()
    with pytest.raises(DeviceError, match="no replay has followed"):
        device.stream("schedule").wait(ticket)


@pytest.mark.parametrize(("early", "step_time"), [(True, 10), (False, 15)])
def test_an_early_fence_hides_the_host_and_a_coarse_one_does_not(early, step_time):
    """A step of D = 10 us and a write of W = 5 us: max(D, W) early, D + W coarse.

    The forward waits for the write, and the write for the fence of the step before.
    """
    device = VirtualDevice({"schedule": 5})
    forward, schedule, ring = device.stream("forward"), device.stream("schedule"), EventRing(device)
    written, steps, tickets = device.event(), 200, []

    def step():
        if early:
            tickets.append(ring.record())
        device.spend(10)
        if not early:
            tickets.append(ring.record())

    with torch.inference_mode():
        for _ in range(steps):
            schedule.submit(lambda: None)
            forward.wait(written.record(schedule))
            forward.submit(step)
            schedule.wait(tickets[-1])
            ring.release(tickets[-1])
    assert forward.clock / steps == pytest.approx(step_time, rel=0.05)
