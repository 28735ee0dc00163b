"""The clock of an accelerator: events that are read afterwards, in the time of the host."""

from __future__ import annotations

import struct

import pytest

from warcore.tracing.clock import CudaClock

SECOND = 1_000_000_000


class World:
    """A host and a device whose clocks drift apart; the device is never behind."""

    def __init__(self, drift=0.0):
        self.host = 7 * SECOND
        self.drift = drift
        self.capturing = self.broken = False

    def now(self):
        return self.host

    @property
    def device(self):
        return self.host * (1 + self.drift)


class Event:
    """What the clock uses of `torch.cuda.Event(enable_timing=True)`."""

    def __init__(self, world):
        self.world = world
        self.at = None

    def record(self, stream=None):
        assert not self.world.capturing
        self.at = self.world.device

    def synchronize(self):
        if self.world.broken:
            raise RuntimeError("an illegal memory access")

    def elapsed_time(self, end):
        if self.world.broken:
            raise RuntimeError("an illegal memory access")
        milliseconds = (end.at - self.at) / 1e6
        return struct.unpack("f", struct.pack("f", milliseconds))[0]


class Cuda:
    """What the clock uses of `torch.cuda`."""

    def __init__(self, world):
        self.world = world

    def Event(self, *, enable_timing):  # the name of torch
        assert enable_timing
        return Event(self.world)

    def is_current_stream_capturing(self):
        return self.world.capturing

    def synchronize(self):
        if self.world.broken:
            raise RuntimeError("an illegal memory access")


class Stream:
    raw = None


def watched(world, gap, count):
    """A clock, and [(stamp, the host's time then)]: the same moment of a stream and of the host."""
    clock = CudaClock(Cuda(world), world.now)
    taken = []
    for _ in range(count):
        world.host += gap
        taken.append((clock.stamp(Stream()), clock.stamp(None), world.host))
    return clock, taken


@pytest.mark.parametrize("drift", [0.0, 2e-5, -2e-5], ids=["true", "fast", "slow"])
@pytest.mark.parametrize(
    ("gap", "count"), [(30_000, 100), (40_000_000, 2000)], ids=["3 ms", "80 s"]
)
def test_host_and_streams_agree_to_a_microsecond_however_long_it_ran(drift, gap, count):
    world = World(drift)
    clock, taken = watched(world, gap, count)
    clock.settle()
    for stream, host, true in taken:
        assert clock.read(host) == true
        assert clock.read(stream) == pytest.approx(true, abs=1000)


def test_events_that_are_close_keep_their_distance_late_in_a_run():
    world = World()
    clock, _ = watched(world, SECOND // 4, 400)
    first = clock.stamp(Stream())
    world.host += 5_000
    second = clock.stamp(Stream())
    clock.settle()
    assert clock.read(second) - clock.read(first) == pytest.approx(5_000, abs=100)


def test_within_a_capture_nothing_is_recorded():
    world = World()
    clock, _ = watched(world, 1000, 1)
    world.capturing = True
    assert clock.read(clock.stamp(Stream())) is None


def test_a_device_that_broke_has_no_times_and_the_host_has():
    world = World()
    clock, [(stream, host, true)] = watched(world, 1000, 1)
    world.broken = True
    clock.settle()
    assert clock.read(stream) is None
    assert clock.read(host) == true
