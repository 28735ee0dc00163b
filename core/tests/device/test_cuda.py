"""What CUDA adds to the contract. Needs a GPU.

Where a test looks whether something is still to come, the stream has some 30 ms of work in front
of it, and the look takes microseconds.
"""

from __future__ import annotations

import gc

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
        # Loading a kernel may wait for the whole device, which would hide what runs when.
        torch.cuda._sleep(1)
        yield device


def busy_for_a_while():
    """Keeps the current stream busy for some milliseconds, without the host."""
    torch.cuda._sleep(50_000_000)


def fail(error):
    raise error


def captured(device, stream, body, pool=None):
    """A graph of `body`."""
    graph = device.graph(pool)
    stream.submit(graph.capture, body).result()
    return graph


def launch(stream, graph, marker):
    """The ticket that this replay of `graph` reaches."""
    return stream.submit(lambda: (marker.rearm(), graph.replay())[0]).result()


def capturing(stream):
    return stream.submit(torch.cuda.is_current_stream_capturing).result()


# Streams and tickets


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


def test_a_copy_to_a_host_buffer_is_there_when_the_ticket_behind_it_is_reached(device):
    stream, buffer = device.stream("forward"), device.host_buffer(4, torch.int64)
    source = torch.zeros(4, dtype=torch.int64, device=device.torch_device)
    device.synchronize()

    def work():
        busy_for_a_while()
        source.fill_(7)
        buffer.copy_(source, non_blocking=True)

    stream.submit(work).result()
    device.event().record(stream).synchronize()
    assert buffer.tolist() == [7, 7, 7, 7]


# Where a marker fires


def test_the_marker_fires_in_the_middle_of_the_graph(device):
    stream, marker, done = device.stream("forward"), device.event(external=True), device.event()
    graph = captured(device, stream, lambda: (marker.record(), busy_for_a_while()))
    for _ in range(2):
        ticket = launch(stream, graph, marker)
        end = done.record(stream)
        ticket.synchronize()
        assert not end.query()
        end.synchronize()


def test_the_marker_does_not_fire_before_its_place_in_the_graph(device):
    stream, marker = device.stream("forward"), device.event(external=True)
    graph = captured(device, stream, lambda: (busy_for_a_while(), marker.record()))
    for _ in range(2):
        ticket = launch(stream, graph, marker)
        assert not ticket.query()
        ticket.synchronize()
        assert ticket.query()


def test_a_stream_goes_on_at_the_marker_while_the_replay_still_runs(device):
    stream, other = device.stream("forward"), device.stream("schedule")
    marker, done, written = device.event(external=True), device.event(), device.event()
    table = torch.ones(4, device=device.torch_device).fill_(1)
    graph = captured(device, stream, lambda: (marker.record(), busy_for_a_while()))
    other.wait(launch(stream, graph, marker))
    end = done.record(stream)
    other.submit(table.fill_, 3)
    written.record(other).synchronize()
    assert not end.query()
    assert table.tolist() == [3, 3, 3, 3]
    end.synchronize()


def test_a_wait_binds_to_its_own_launch_although_a_later_one_is_in_flight(device):
    stream, other, marker = (
        device.stream("forward"),
        device.stream("schedule"),
        device.event(external=True),
    )
    graph = captured(device, stream, lambda: (busy_for_a_while(), marker.record()))
    other.wait(launch(stream, graph, marker))
    passed = device.event().record(other)
    later = launch(stream, graph, marker)
    passed.synchronize()
    assert not later.query()
    later.synchronize()


def test_a_marker_of_several_graphs_stands_for_the_newest_launch(device):
    stream, marker, pool = (
        device.stream("forward"),
        device.event(external=True),
        device.graph_pool(),
    )
    graphs = [
        captured(device, stream, lambda: (busy_for_a_while(), marker.record()), pool)
        for _ in range(2)
    ]
    old = launch(stream, graphs[0], marker)
    new = launch(stream, graphs[1], marker)
    with pytest.raises(DeviceError, match="was overwritten"):
        device.stream("schedule").wait(old)
    assert not new.query()
    new.synchronize()


def test_a_replay_that_nobody_armed_overwrites_the_tickets_before_it(device):
    stream, marker = device.stream("forward"), device.event(external=True)
    graph = captured(device, stream, marker.record)
    old = launch(stream, graph, marker)
    stream.submit(graph.replay).result()
    with pytest.raises(DeviceError, match="was overwritten"):
        old.synchronize()


def test_a_ticket_is_refused_before_its_replay_is_launched(device):
    stream, marker = device.stream("forward"), device.event(external=True)
    captured(device, stream, marker.record)
    ticket = stream.submit(marker.rearm).result()
    assert not ticket.query()
    with pytest.raises(DeviceError, match="has not been launched"):
        device.stream("other").wait(ticket)


def test_a_disarmed_ticket_lies_behind_what_was_launched_before(device):
    stream, marker = device.stream("forward"), device.event(external=True)
    captured(device, stream, marker.record)

    def fails():
        ticket = marker.rearm()
        busy_for_a_while()
        marker.disarm()
        return ticket

    ticket = stream.submit(fails).result()
    assert not ticket.query()
    ticket.synchronize()


def test_in_a_capture_a_marker_is_recorded_on_the_stream_of_the_capture(device):
    stream, other, marker = (
        device.stream("forward"),
        device.stream("other"),
        device.event(external=True),
    )
    with pytest.raises(DeviceError, match="on another stream"):
        captured(device, stream, lambda: marker.record(other))


# Breaks


def test_a_break_reads_what_the_section_before_it_computed(device):
    stream, graph = device.stream("forward"), device.graph()
    source = torch.arange(4, device=device.torch_device)

    def body():
        index = 3 - source
        return graph.outside(lambda: source.index_select(0, index)) + 1

    output = stream.submit(graph.capture, body).result()
    stream.submit(graph.replay).result()
    device.synchronize()
    assert output.tolist() == [4, 3, 2, 1]


def test_the_marker_before_a_break_fires_although_the_break_still_runs(device):
    stream, graph = device.stream("forward"), device.graph()
    marker, done = device.event(external=True), device.event()
    source = torch.ones(4, device=device.torch_device)

    def body():
        doubled = source * 2
        marker.record()
        return graph.outside(lambda: (busy_for_a_while(), doubled + 1)[1]) * 3

    stream.submit(graph.capture, body).result()
    ticket = launch(stream, graph, marker)
    end = done.record(stream)
    ticket.synchronize()
    assert not end.query()
    end.synchronize()


def test_later_graphs_of_a_pool_leave_the_value_of_a_break_alone(device):
    stream, pool = device.stream("forward"), device.graph_pool()
    source = torch.ones(1 << 16, device=device.torch_device)
    first = device.graph(pool)
    value = stream.submit(first.capture, lambda: first.outside(lambda: source + 1)).result()
    other = captured(device, stream, lambda: (source * 5 + 1) * 7, pool)
    stream.submit(first.replay).result()
    stream.submit(other.replay).result()
    device.synchronize()
    assert value.unique().tolist() == [2]


def test_what_a_break_closes_over_is_left_alone_by_the_rest_of_the_graph(device):
    stream, graph = device.stream("forward"), device.graph()
    source = torch.ones(1 << 16, device=device.torch_device)

    def increment(of):
        return lambda: of + 1

    def body():
        value = graph.outside(increment(source * 2))
        for _ in range(8):
            value = value * 1 + 0
        return value

    output = stream.submit(graph.capture, body).result()
    for _ in range(3):
        stream.submit(graph.replay).result()
    device.synchronize()
    assert output.unique().tolist() == [3]


# Captures that fail


def test_a_break_that_fails_ends_the_capture(device):
    stream, pool = device.stream("forward"), device.graph_pool()
    source = torch.ones(4, device=device.torch_device)
    graph = device.graph(pool)
    with pytest.raises(LookupError, match="mine"):
        stream.submit(
            graph.capture, lambda: source * graph.outside(lambda: fail(LookupError("mine")))
        ).result()
    assert not capturing(stream)
    stream.submit(graph.capture, lambda: source * 2).result()
    stream.submit(graph.replay).result()


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
def test_a_capture_that_cuda_invalidates_leaves_torch_as_it_was(device, swallowed):
    stream, pool = device.stream("forward"), device.graph_pool()
    source = torch.ones(4, device=device.torch_device)

    def reads():
        doubled = source * 2
        try:
            doubled.sum().item()
        except RuntimeError:
            if not swallowed:
                raise
        return doubled

    graph = device.graph(pool)
    with pytest.raises(DeviceError, match="cannot be captured"):
        stream.submit(graph.capture, reads).result()
    assert not capturing(stream)
    torch.cuda.empty_cache()
    torch.randn(4, device=device.torch_device)
    output = stream.submit(graph.capture, lambda: source * 2).result()
    stream.submit(graph.replay).result()
    device.synchronize()
    assert output.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    ],
    ids=["shape", "mask", "to the host", "from the host"],
)
def test_what_no_replay_could_repeat_is_refused(device, forbidden):
    stream, source = device.stream("forward"), torch.ones(4, device=device.torch_device)
    with pytest.raises(DeviceError, match="cannot be captured"):
        captured(device, stream, lambda: forbidden(source))
    assert not capturing(stream)


def test_nothing_is_collected_during_a_capture_and_everything_after_it(device):
    stream = device.stream("forward")
    source = torch.ones(4, device=device.torch_device)
    graph = device.graph()
    assert stream.submit(graph.capture, lambda: (source * 2, gc.isenabled())).result()[1] is False
    assert gc.isenabled()


# Memory


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


def test_a_pool_takes_graphs_again_after_all_of_its_graphs_have_died(device):
    stream, pool = device.stream("forward"), device.graph_pool()
    source = torch.ones(4, device=device.torch_device)
    for _ in range(2):
        captured(device, stream, lambda: source * 2, pool)
        gc.collect()


def test_a_matrix_product_is_captured_after_it_has_run_once(device):
    assert device.warms_up
    stream = device.stream("forward")
    weight = torch.eye(64, device=device.torch_device)
    source = torch.full((8, 64), 2.0, device=device.torch_device)
    device.synchronize()
    stream.submit(torch.matmul, source, weight).result()
    graph = device.graph()
    output = stream.submit(graph.capture, lambda: source @ weight).result()
    stream.submit(source.fill_, 3)
    stream.submit(graph.replay).result()
    device.synchronize()
    assert output.unique().tolist() == [3]
