"""The staging ring: host memory is refilled only when nobody reads it any more."""

from __future__ import annotations

from array import array

import pytest
import torch

from warcore.device.host import host_device
from warcore.staging import Block, StagingRing


def words(*values):
    return array("q", values)


@pytest.fixture(params=["inline", "threads", "seeded:4"])
def device(request):
    with host_device(request.param) as device:
        yield device


def gated():
    return pytest.mark.parametrize("device", ["threads", "seeded:4"], indirect=True)


def test_what_was_put_is_on_the_device_once_the_stream_has_come_so_far(device):
    stream = device.stream("schedule")
    ring = StagingRing(device, stream)
    values = [7, -1, 2**62, -(2**63)]
    assert stream.submit(ring.put(words(*values)).tolist).result() == values


def test_each_put_has_device_memory_of_its_own(device):
    stream = device.stream("schedule")
    ring = StagingRing(device, stream, depth=1)
    first, second = ring.put(words(1, 2)), ring.put(words(3))
    device.synchronize()
    assert (first.tolist(), second.tolist()) == ([1, 2], [3])


def test_putting_nothing_is_an_empty_tensor(device):
    assert StagingRing(device, device.stream("schedule")).put(words()).shape == (0,)


def test_the_columns_of_a_block_cross_in_one_copy_and_doubles_keep_every_bit(device):
    values = [0.1, -0.0, 1e308, 5e-324]
    copies = []
    ring = StagingRing(device, device.stream("schedule"), submitted=copies.append)
    block = Block(16, device)
    rows, floats = block.integers([7, 8]), block.column(values, torch.float32)
    block.ship(ring)
    device.synchronize()
    assert (rows.tolist(), floats.tolist()) == ([7, 8], values)
    assert len(copies) == 1


def test_an_empty_block_sends_nothing(device):
    copies = []
    Block(4, device).ship(StagingRing(device, device.stream("schedule"), submitted=copies.append))
    assert not copies


def test_a_ring_that_is_not_full_never_stalls(device):
    stream, gate = device.stream("schedule"), device.latch()
    ring = StagingRing(device, stream, depth=4)
    if device.mode != "inline":
        stream.submit(gate.wait)
    for n in range(4):
        ring.put(words(n))
    assert ring.stalls == 0
    gate.set()


@gated()
def test_refilling_a_slot_waits_for_its_copy_and_is_counted(device):
    """The gate is opened by whoever would have waited: the memory was still being read."""
    stream, gate = device.stream("schedule"), device.latch()
    ring = StagingRing(device, stream, depth=2)
    stream.submit(gate.wait)
    staged = [ring.put(words(n)) for n in (10, 11)]
    slot = ring.slots[0]
    ticket = slot.ticket
    synchronize, waited = ticket.event.synchronize, []

    def opening(generation):
        waited.append((generation, slot.window[0]))
        gate.set()
        synchronize(generation)

    ticket.event.synchronize = opening
    staged.append(ring.put(words(12)))
    assert waited == [(ticket.generation, 10)]  # not refilled before the wait
    assert ring.stalls == 1
    device.synchronize()
    assert [tensor.item() for tensor in staged] == [10, 11, 12]


@gated()
def test_a_slot_too_small_is_replaced_after_its_copy_and_not_resized(device):
    stream = device.stream("schedule")
    ring = StagingRing(device, stream, words=2, depth=1)
    small = ring.put(words(1, 2))
    before = ring.slots[0]
    large = ring.put(words(*range(9)))
    assert ring.slots[0] is not before
    assert before.ticket.query()
    assert len(ring.slots[0].window) == 16
    device.synchronize()
    assert (small.tolist(), large.tolist()) == ([1, 2], list(range(9)))


def test_within_work_of_its_own_stream_the_copy_is_made_at_once(device):
    stream = device.stream("forward")
    ring = StagingRing(device, stream, depth=1)

    def work():
        first = ring.put(words(1)).tolist()
        return first, ring.put(words(2)).tolist()

    assert stream.submit(work).result() == ([1], [2])


def test_whoever_wants_to_hears_of_every_copy(device):
    stream, copies = device.stream("schedule"), []
    ring = StagingRing(device, stream, submitted=copies.append)
    ring.put(words(1))
    ring.put(words(2))
    device.synchronize()
    assert [copy.error for copy in copies] == [None, None]
