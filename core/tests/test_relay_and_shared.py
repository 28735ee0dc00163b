"""Relay and shared buffers: who writes them, on which stream, and what padding may touch."""

from __future__ import annotations

import pytest
import torch

from warcore.device.host import host_device
from warcore.relay import Relay
from warcore.shared import SharedBuffers


@pytest.fixture(params=["inline", "threads"])
def device(request):
    with host_device(request.param) as device:
        yield device


def buffers(device, **more):
    stream = device.stream("schedule")
    return SharedBuffers(device, stream, **{"rows": 3, "context": 10, "page_size": 4, **more})


def test_the_table_has_whole_pages_and_a_row_for_padding(device):
    shared = buffers(device)
    assert shared.pages_per_row == 3
    assert shared.tables.req_to_token.shape == (4, 12)
    assert shared.tables.req_to_token.dtype == torch.int32
    assert not shared.tables.req_to_token.any()
    assert shared.tables.full_to_swa is None


def test_a_written_page_holds_its_slots_and_its_neighbours_are_untouched(device):
    shared = buffers(device)
    places = torch.tensor([shared.place(2, 0), shared.place(2, 2), shared.place(3, 1)])
    shared.write_pages(places, torch.tensor([5, 1, 7])).result()
    table = shared.tables.req_to_token
    assert table[2].tolist() == [20, 21, 22, 23, 0, 0, 0, 0, 4, 5, 6, 7]
    assert table[3].tolist() == [0, 0, 0, 0, 28, 29, 30, 31, 0, 0, 0, 0]
    assert not table[:2].any()


def test_pages_of_one_token(device):
    shared = buffers(device, page_size=1)
    shared.write_pages(torch.tensor([shared.place(1, 9)]), torch.tensor([6])).result()
    assert shared.tables.req_to_token[1].tolist() == [0] * 9 + [6]


def test_the_readers_view_is_live_memory(device):
    shared = buffers(device)
    view = shared.tables.req_to_token[1]
    shared.write_pages(torch.tensor([shared.place(1, 0)]), torch.tensor([1])).result()
    assert view[:4].tolist() == [4, 5, 6, 7]


def test_writes_wait_in_the_order_of_the_schedule_stream():
    with host_device("threads") as device:
        stream, gate = device.stream("schedule"), device.latch()
        shared = SharedBuffers(device, stream, rows=1, context=4, page_size=4)
        stream.submit(gate.wait)
        write = shared.write_pages(torch.tensor([1]), torch.tensor([1]))
        assert not write.done
        assert not shared.tables.req_to_token.any()
        gate.set()
        write.result()
        assert shared.tables.req_to_token[1].tolist() == [4, 5, 6, 7]


def test_a_write_beyond_the_table_fails_on_its_stream_and_not_on_the_caller(device):
    write = buffers(device).write_pages(torch.tensor([99]), torch.tensor([1]))
    with pytest.raises((IndexError, RuntimeError)):
        write.result()


def test_the_relay_keeps_what_a_step_published_by_row():
    relay = Relay(3, torch.device("cpu"))
    relay.publish(torch.tensor([3, 1]), torch.tensor([40, 50]), torch.tensor([7, 8]))
    relay.publish(torch.tensor([3]), torch.tensor([41]), torch.tensor([9]))
    assert relay.tokens.tolist() == [0, 50, 0, 41]
    assert relay.lengths.tolist() == [0, 8, 0, 9]
