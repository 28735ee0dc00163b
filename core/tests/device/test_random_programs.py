"""Random programs of work, records and waits: whatever the interleaving, tickets order streams."""

from __future__ import annotations

import random

import pytest
import torch

from warcore.device.host import HostDevice
from warcore.errors import DeviceError

SEEDS = 25


def run(device, seed, steps=60):
    """Submit a random program; the order in which its work ran, and the pairs that must be in it.

    Half of the records and waits are made within work, where they act now.
    """
    draw = random.Random(seed)
    streams = [device.stream(name) for name in ("a", "b", "c")]
    events = [device.event() for _ in range(4)]
    log, pairs, tickets, last = [], set(), [], dict.fromkeys(streams)
    state = torch.zeros(1)

    def work(n, act):
        state.add_(1)
        log.append(n)
        return act and act()

    for n in range(steps):
        stream = draw.choice(streams)
        if last[stream] is not None:
            pairs.add((last[stream], n))
        act = None
        if tickets and draw.random() < 0.4:
            ticket, before = draw.choice(tickets)
            pairs.add((before, n))
            stream.wait(ticket)
        if tickets and draw.random() < 0.3:
            ticket, _ = draw.choice(tickets)
            act = lambda stream=stream, ticket=ticket: stream.wait(ticket)
        pending = stream.submit(work, n, act)
        last[stream] = n
        if draw.random() < 0.4:
            tickets.append((draw.choice(events).record(stream), n))
        if draw.random() < 0.1:
            pending.result()
            assert n in log
    return log, pairs


@pytest.mark.parametrize("mode", ["threads", "inline", "seeded"])
def test_streams_and_tickets_order_the_work(mode):
    for seed in range(SEEDS):
        with HostDevice(mode, seed) as device:
            log, pairs = run(device, seed)
            device.synchronize()
        place = {n: at for at, n in enumerate(log)}
        assert len(place) == 60
        assert all(place[before] < place[after] for before, after in pairs), f"seed {seed}"


def test_a_seed_repeats_a_whole_program():
    def once(seed):
        with HostDevice("seeded", seed) as device:
            log, _ = run(device, seed)
            device.synchronize()
        return log

    assert all(once(seed) == once(seed) for seed in range(SEEDS))


@pytest.mark.parametrize("mode", ["threads", "seeded"])
def test_closing_in_the_middle_of_a_program_leaves_nothing_undone(mode, stream_threads):
    for seed in range(SEEDS):
        device = HostDevice(mode, seed)
        stream, latch = device.stream("d"), device.latch()
        stuck = [stream.submit(latch.wait) for _ in range(3)]
        run(device, seed, steps=20)
        device.close()
        for pending in stuck:
            assert isinstance(pending.error, DeviceError)
        assert stream_threads() == []
