"""What CUDA adds to the contract. Needs a GPU."""

from __future__ import annotations

import pytest
import torch

from warcore.errors import DeviceError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture
def device():
    from warcore.device.cuda import CudaDevice

    with CudaDevice() as device:
        yield device


def busy_for_a_while():
    """Keeps the current stream busy for some milliseconds, without the host."""
    torch.cuda._sleep(50_000_000)


def test_work_is_asynchronous_and_a_ticket_tells_when_it_is_done(device):
    stream, event = device.stream("forward"), device.event()
    stream.submit(busy_for_a_while)
    ticket = event.record(stream)
    assert not ticket.query()
    ticket.synchronize()
    assert ticket.query()


def test_a_stream_waits_on_the_device_and_not_on_the_host(device):
    one, other = device.stream("one"), device.stream("other")
    one.submit(busy_for_a_while)
    held = device.event().record(one)
    other.wait(held)
    after = device.event().record(other)
    assert not after.query()
    after.synchronize()
    assert held.query()


def test_a_ticket_whose_event_was_recorded_again_is_refused(device):
    stream, event = device.stream("forward"), device.event()
    old = event.record(stream)
    event.record(stream)
    for use in (device.stream("other").wait, lambda ticket: ticket.synchronize()):
        with pytest.raises(DeviceError, match="was overwritten by record 2"):
            use(old)


def test_a_ticket_is_refused_before_its_replay_is_launched(device):
    stream, graph, marker = device.stream("forward"), device.graph(), device.event(external=True)
    stream.submit(graph.capture, marker.record).result()
    ticket = stream.submit(marker.rearm).result()
    with pytest.raises(DeviceError, match="has not been launched"):
        device.stream("other").wait(ticket)


def test_streams_never_alias(device):
    streams = [device.stream(str(n)) for n in range(20)]
    assert len({stream.raw.cuda_stream for stream in streams}) == 20


def test_running_out_of_streams_is_an_error(device):
    def take_all():
        for n in range(200):
            device.stream(str(n))

    with pytest.raises(DeviceError, match="no CUDA stream is left"):
        take_all()


def test_a_host_buffer_is_pinned(device):
    assert device.host_buffer(4, torch.int32).is_pinned()


def test_the_marker_fires_in_the_middle_of_the_graph(device):
    stream, graph, marker = device.stream("forward"), device.graph(), device.event(external=True)
    done = device.event()

    def body():
        marker.record()
        busy_for_a_while()

    stream.submit(graph.capture, body).result()
    ticket = stream.submit(lambda: (marker.rearm(), graph.replay())[0]).result()
    end = done.record(stream)
    ticket.synchronize()
    assert not end.query()
    end.synchronize()


def test_the_marker_does_not_fire_before_its_place_in_the_graph(device):
    stream, graph, marker = device.stream("forward"), device.graph(), device.event(external=True)

    def body():
        busy_for_a_while()
        marker.record()

    stream.submit(graph.capture, body).result()
    for _ in range(2):
        ticket = stream.submit(lambda: (marker.rearm(), graph.replay())[0]).result()
        assert not ticket.query()
        ticket.synchronize()


def test_results_of_one_graph_survive_the_replay_of_another(device):
    stream = device.stream("forward")
    x = torch.ones(1024, device=device.torch_device)
    graphs = [device.graph() for _ in range(2)]
    outputs = [
        stream.submit(graph.capture, lambda scale=scale: (x * scale) + 1).result()
        for scale, graph in enumerate(graphs, 1)
    ]
    for graph in graphs:
        stream.submit(graph.replay).result()
    device.synchronize()
    assert [output[0].item() for output in outputs] == [2, 3]
