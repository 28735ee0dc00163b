"""The rules of device/base.py, held on every device."""

from __future__ import annotations

import pytest
import torch

from warcore.device import EventRing, Observer
from warcore.errors import DeviceError


def fail(error):
    raise error


# Streams


def test_work_of_one_stream_runs_in_the_order_of_submission(device):
    stream, log = device.stream("forward"), []
    for n in range(5):
        pending = stream.submit(log.append, n)
    pending.result()
    assert log == [0, 1, 2, 3, 4]


def test_result_is_what_the_function_returned(device):
    assert device.stream("forward").submit(divmod, 7, 3).result() == (2, 1)


def test_submit_raises_nothing_and_result_raises_what_the_function_raised(device):
    pending = device.stream("forward").submit(fail, LookupError("mine"))
    with pytest.raises(LookupError, match="mine"):
        pending.result()
    assert pending.done
    assert isinstance(pending.error, LookupError)


def test_a_failed_function_does_not_stop_the_stream(device):
    stream = device.stream("forward")
    stream.submit(fail, ValueError())
    assert stream.submit(lambda: "next").result() == "next"


def test_a_pending_without_error_has_none(device):
    pending = device.stream("forward").submit(lambda: None)
    pending.result()
    assert pending.error is None


def test_submitted_work_runs_under_inference_mode(device):
    assert device.stream("forward").submit(torch.is_inference_mode_enabled).result()
    assert not torch.is_inference_mode_enabled()


def test_the_current_stream_is_the_one_whose_work_runs(device):
    stream = device.stream("forward")
    assert stream.submit(device.current_stream).result() is stream
    assert device.current_stream() is None


def test_work_may_submit_to_another_stream(device):
    one, other = device.stream("one"), device.stream("other")
    inner = one.submit(lambda: other.submit(device.current_stream)).result()
    assert inner.result() is other


def test_work_gone_wrong_inside_other_work_leaves_the_outer_stream_current(device):
    one, other = device.stream("one"), device.stream("other")

    def outer():
        other.submit(fail, ValueError())
        return device.current_stream()

    assert one.submit(outer).result() is one


def test_streams_are_distinct_and_keep_their_name(device):
    one, other = device.stream("same"), device.stream("same")
    assert one is not other
    assert one.name == other.name == "same"
    assert list(device.streams) == [one, other]


# Events and tickets


def test_an_event_counts_its_records_and_is_reached_before_the_first(device):
    event, stream = device.event(), device.stream("forward")
    assert event.generation == 0
    assert event.query()
    assert [event.record(stream).generation for _ in range(3)] == [1, 2, 3]
    event.synchronize()
    assert event.generation == 3
    assert event.query()


def test_streams_are_ordered_by_a_ticket(device):
    one, other, log = device.stream("one"), device.stream("other"), []
    one.submit(log.append, "before")
    ticket = device.event().record(one)
    other.wait(ticket)
    other.submit(log.append, "after").result()
    assert log == ["before", "after"]


def test_the_host_waits_for_a_ticket(device):
    stream, log = device.stream("forward"), []
    stream.submit(log.append, 1)
    ticket = device.event().record(stream)
    ticket.synchronize()
    assert ticket.query()
    assert log == [1]


def test_record_within_work_acts_on_the_current_stream_now(device):
    stream, event = device.stream("forward"), device.event()
    ticket = stream.submit(event.record).result()
    ticket.synchronize()
    assert ticket.query()


def test_wait_within_work_of_the_stream_acts_now(device):
    one, other, log = device.stream("one"), device.stream("other"), []
    one.submit(log.append, "one")
    ticket = device.event().record(one)

    def work():
        other.wait(ticket)
        log.append("other")

    other.submit(work).result()
    assert log == ["one", "other"]


def test_a_record_outside_work_needs_a_stream(device):
    with pytest.raises(DeviceError, match="outside submitted work"):
        device.event().record()


def test_tickets_are_equal_if_event_and_generation_are(device):
    stream, event = device.stream("forward"), device.event()
    ticket = event.record(stream)
    assert ticket == type(ticket)(event, 1)
    assert ticket != event.record(stream)


# Latches


def test_a_latch_opens_once_and_stays_open(device):
    latch = device.latch()
    assert not latch.is_set
    latch.set()
    latch.set()
    latch.wait()
    assert latch.is_set


def test_submitted_work_passes_an_open_latch(device):
    one, other, latch = device.stream("one"), device.stream("other"), device.latch()
    one.submit(latch.set)
    other.submit(latch.wait).result()


# Memory


def test_a_host_buffer_is_writable_by_the_host_wherever_it_was_made(device):
    stream = device.stream("schedule")
    for buffer in (
        device.host_buffer(4, torch.int32),
        stream.submit(device.host_buffer, 4, torch.int32).result(),
    ):
        buffer[:] = torch.arange(4, dtype=torch.int32)
        assert buffer.tolist() == [0, 1, 2, 3]
        assert buffer.device.type == "cpu"


def test_the_torch_device_is_where_tensors_live(device):
    assert torch.empty(1, device=device.torch_device).device.type == device.torch_device.type


# The whole device


def test_synchronize_waits_for_every_stream(device):
    log = []
    for name in ("one", "other"):
        device.stream(name).submit(log.append, name)
    device.synchronize()
    assert sorted(log) == ["one", "other"]


def test_close_is_idempotent_and_ends_submission(device):
    stream = device.stream("forward")
    stream.submit(lambda: None).result()
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        stream.submit(lambda: None)
    with pytest.raises(DeviceError, match="closed"):
        device.stream("late")


# Observers


class Notes(Observer):
    def __init__(self):
        self.seen = []

    def submitted(self, stream, pending):
        self.seen.append(("submitted", stream.name))

    def started(self, stream, pending):
        self.seen.append(("started", stream.name))

    def finished(self, stream, pending):
        self.seen.append(("finished", stream.name))

    def joined(self, pending):
        self.seen.append(("joined", None))

    def recorded(self, stream, ticket):
        self.seen.append(("recorded", stream.name))

    def waited(self, stream, ticket):
        self.seen.append(("waited", stream and stream.name))


def test_an_observer_sees_each_thing_that_orders_work(device):
    notes = Notes()
    one, other = device.stream("one"), device.stream("other")
    with device.watched_by(notes):
        one.submit(lambda: None).result()
        ticket = device.event().record(one)
        ticket.synchronize()
        other.wait(ticket)
        device.synchronize()
    assert notes.seen == [
        ("submitted", "one"),
        ("started", "one"),
        ("finished", "one"),
        ("joined", None),
        ("recorded", "one"),
        ("waited", None),
        ("waited", "other"),
    ]


# The ring


def test_a_ring_records_its_events_in_turn(device):
    ring, stream = EventRing(device), device.stream("forward")
    events = []
    for _ in range(4):
        ticket = stream.submit(ring.record).result()
        events.append(ticket.event)
        ring.release(ticket)
    assert events[0] is events[2]
    assert events[1] is events[3]
    assert events[0] is not events[1]


def test_a_ring_refuses_to_record_a_slot_whose_ticket_is_held(device):
    ring, stream = EventRing(device), device.stream("forward")
    first = stream.submit(ring.record).result()
    stream.submit(ring.record).result()
    with pytest.raises(DeviceError, match="held by an older launch"):
        stream.submit(ring.record).result()
    ring.release(first)
    assert stream.submit(ring.record).result().event is first.event


def test_a_ring_ignores_tickets_that_are_not_its_own_and_a_second_release(device):
    ring, stream = EventRing(device, depth=1), device.stream("forward")
    ring.release(device.event().record(stream))
    first = stream.submit(ring.record).result()
    ring.release(first)
    ring.release(first)
    second = stream.submit(ring.record).result()
    ring.release(first)
    with pytest.raises(DeviceError, match="held"):
        stream.submit(ring.record).result()
    ring.release(second)


def test_a_ring_has_a_slot(device):
    with pytest.raises(ValueError, match="no slot"):
        EventRing(device, depth=0)


# Graphs


@pytest.fixture
def graphs(device):
    if not device.supports_graphs:
        pytest.skip(f"the {device.name} device has no graphs")
    return device


@pytest.fixture
def markers(graphs):
    if not graphs.supports_external_events:
        pytest.skip(f"the {graphs.name} device has no external events")
    return graphs


def doubled(graphs):
    """A stream, a static input, a graph of input * 2, and its static output."""
    stream, graph = graphs.stream("forward"), graphs.graph()
    source = torch.ones(3, device=graphs.torch_device)
    output = stream.submit(graph.capture, lambda: source * 2).result()
    return stream, source, graph, output


def test_a_replay_computes_from_what_static_memory_holds_by_then(graphs):
    stream, source, graph, output = doubled(graphs)
    stream.submit(source.fill_, 5)
    stream.submit(graph.replay).result()
    graphs.synchronize()
    assert output.tolist() == [10, 10, 10]


def test_capture_gives_what_the_function_returned(graphs):
    stream, graph = graphs.stream("forward"), graphs.graph()
    value = torch.ones(1, device=graphs.torch_device)
    assert stream.submit(graph.capture, lambda: (value.add_(1), "any")).result()[1] == "any"


def test_a_pool_knows_the_memory_that_it_keeps(graphs):
    stream, pool = graphs.stream("forward"), graphs.graph_pool()
    assert pool.nbytes == 0
    source = torch.ones(3, device=graphs.torch_device)
    output = stream.submit(graphs.graph(pool).capture, lambda: source * 2).result()
    assert pool.nbytes >= output.nbytes


def test_what_a_capture_lets_go_of_serves_later_graphs_of_its_pool(graphs):
    stream, pool = graphs.stream("forward"), graphs.graph_pool()
    source = torch.ones(1000, device=graphs.torch_device)
    stream.submit(graphs.graph(pool).capture, lambda: source * 2 + 1).result()
    before = pool.nbytes
    stream.submit(graphs.graph(pool).capture, lambda: source * 3 + 1).result()
    assert pool.nbytes == before


def test_results_that_somebody_holds_survive_the_replays_of_other_graphs_in_the_pool(graphs):
    stream, pool = graphs.stream("forward"), graphs.graph_pool()
    source = torch.ones(3, device=graphs.torch_device)
    one, other = graphs.graph(pool), graphs.graph(pool)
    held = stream.submit(one.capture, lambda: source * 2).result()
    stream.submit(other.capture, lambda: (source * 3) * 3).result()
    stream.submit(one.replay)
    stream.submit(other.replay).result()
    graphs.synchronize()
    assert held.tolist() == [2, 2, 2]


def test_a_break_runs_again_in_each_replay_between_what_stands_before_and_after_it(graphs):
    stream, graph, seen = graphs.stream("forward"), graphs.graph(), []
    source = torch.ones(3, device=graphs.torch_device)

    def body():
        doubled = source * 2

        def outside():
            seen.append(doubled.sum().item())
            return doubled + 1

        return graph.outside(outside) * 10

    output = stream.submit(graph.capture, body).result()
    for value in (5, 7):
        stream.submit(source.fill_, value)
        stream.submit(graph.replay).result()
        graphs.synchronize()
        assert output.tolist() == [10 * (2 * value + 1)] * 3
    assert seen == [6, 30, 42]


def test_a_break_gives_the_same_memory_each_time(graphs):
    stream, graph = graphs.stream("forward"), graphs.graph()
    source = torch.ones(3, device=graphs.torch_device)
    value = stream.submit(graph.capture, lambda: graph.outside(lambda: source + 1)).result()
    address = value.data_ptr()
    stream.submit(source.fill_, 8)
    stream.submit(graph.replay).result()
    graphs.synchronize()
    assert value.tolist() == [9, 9, 9]
    assert value.data_ptr() == address


def test_a_break_is_asked_for_in_the_capture_of_its_graph(graphs):
    stream, graph, other = graphs.stream("forward"), graphs.graph(), graphs.graph()
    with pytest.raises(DeviceError, match="capture of its graph"):
        graph.outside(lambda: torch.ones(1))
    with pytest.raises(DeviceError, match="capture of its graph"):
        stream.submit(graph.capture, lambda: other.outside(lambda: torch.ones(1))).result()


def test_an_error_of_the_captured_function_comes_through_and_the_graph_stays_empty(graphs):
    stream, graph = graphs.stream("forward"), graphs.graph()
    with pytest.raises(LookupError, match="mine"):
        stream.submit(graph.capture, lambda: fail(LookupError("mine"))).result()
    with pytest.raises(DeviceError, match="holds nothing"):
        stream.submit(graph.replay).result()
    source = torch.ones(1, device=graphs.torch_device)
    stream.submit(graph.capture, lambda: source * 2).result()
    stream.submit(graph.replay).result()


def test_a_graph_is_captured_once(graphs):
    stream, _, graph, _ = doubled(graphs)
    with pytest.raises(DeviceError, match="has been captured"):
        stream.submit(graph.capture, lambda: None).result()


def test_a_capture_holds_no_other_capture_and_no_replay(graphs):
    stream, _, graph, _ = doubled(graphs)
    inner = graphs.graph()
    with pytest.raises(DeviceError, match="inside another capture"):
        stream.submit(graphs.graph().capture, lambda: inner.capture(lambda: None)).result()
    with pytest.raises(DeviceError, match="within a capture"):
        stream.submit(graphs.graph().capture, graph.replay).result()


def test_capture_and_replay_belong_in_submitted_work(graphs):
    _, _, graph, _ = doubled(graphs)
    with pytest.raises(DeviceError, match="outside submitted work"):
        graphs.graph().capture(lambda: None)
    with pytest.raises(DeviceError, match="outside submitted work"):
        graph.replay()


def test_a_value_that_leaves_the_device_fails_at_capture_with_the_line_that_asks_for_it(graphs):
    stream, source = graphs.stream("forward"), torch.ones(3, device=graphs.torch_device)
    with pytest.raises(DeviceError, match=r"cannot be captured[\s\S]*source\.sum\(\)\.item"):
        stream.submit(graphs.graph().capture, lambda: source.sum().item()).result()


def test_only_external_events_are_recorded_within_a_capture(graphs):
    stream, event = graphs.stream("forward"), graphs.event()
    with pytest.raises(DeviceError, match="not external"):
        stream.submit(graphs.graph().capture, event.record).result()


def test_a_wait_within_a_capture_is_refused(graphs):
    stream = graphs.stream("forward")
    ticket = graphs.event().record(stream)
    with pytest.raises(DeviceError, match="within a capture"):
        stream.submit(graphs.graph().capture, lambda: stream.wait(ticket)).result()


def marked(markers):
    """A stream, and a graph with one marker."""
    stream, graph, marker = markers.stream("forward"), markers.graph(), markers.event(external=True)
    captured = stream.submit(graph.capture, marker.record).result()
    return stream, graph, marker, captured


def test_each_replay_reaches_the_ticket_that_was_armed_before_it(markers):
    stream, graph, marker, _ = marked(markers)

    def step():
        ticket = marker.rearm()
        before = ticket.query()
        graph.replay()
        return before, ticket

    for _ in range(3):
        before, ticket = stream.submit(step).result()
        assert not before
        ticket.synchronize()
        assert ticket.query()


def test_another_stream_waits_for_the_marker_of_a_replay(markers):
    stream, graph, marker, _ = marked(markers)
    ticket = stream.submit(lambda: (marker.rearm(), graph.replay())[0]).result()
    other = markers.stream("other")
    other.wait(ticket)
    assert other.submit(lambda: "after").result() == "after"


def test_disarming_passes_the_tickets_of_a_replay_that_failed_or_never_came(markers):
    stream, graph, marker, _ = marked(markers)
    other = markers.stream("other")

    def fails():
        ticket = marker.rearm()
        marker.disarm()
        return ticket

    ticket = stream.submit(fails).result()
    ticket.synchronize()
    assert ticket.query()
    other.wait(ticket)
    assert other.submit(lambda: "after").result() == "after"
    again = stream.submit(lambda: (marker.rearm(), graph.replay())[0]).result()
    again.synchronize()


def test_disarming_tells_whether_there_was_a_ticket(markers):
    stream, graph, marker, _ = marked(markers)
    told = stream.submit(
        lambda: [
            marker.disarm(),
            (marker.rearm(), marker.disarm())[1],
            marker.disarm(),
            (marker.rearm(), graph.replay(), marker.disarm())[2],
        ]
    ).result()
    assert told == [False, True, False, False]


def test_a_graph_holds_an_event_once(markers):
    stream, graph, marker = markers.stream("forward"), markers.graph(), markers.event(external=True)

    def body():
        marker.record()
        value = torch.ones(3, device=markers.torch_device) + 1
        marker.record()
        return value

    with pytest.raises(DeviceError, match="is in this graph already"):
        stream.submit(graph.capture, body).result()


def test_each_ticket_is_passed_once(markers):
    """And those of steps long past are forgotten, however many there were."""
    stream, graph, marker, _ = marked(markers)
    seen = []

    class Watching(Observer):
        def recorded(self, stream, ticket):
            if ticket.event is marker:
                seen.append(ticket.generation)

    with markers.watched_by(Watching()):
        tickets = [
            stream.submit(lambda: (marker.rearm(), graph.replay())[0]).result() for _ in range(4)
        ]
        markers.synchronize()
    assert seen == [ticket.generation for ticket in tickets]


def test_disarming_belongs_in_submitted_work_and_without_tickets_does_nothing(markers):
    stream, _, marker, _ = marked(markers)
    stream.submit(marker.disarm).result()
    with pytest.raises(DeviceError, match="submitted work"):
        marker.disarm()


def test_the_ticket_of_a_capture_is_never_reached_and_cannot_be_waited_for(markers):
    stream, graph, _, captured = marked(markers)
    stream.submit(graph.replay).result()
    assert not captured.query()
    with pytest.raises(DeviceError, match="belongs to a capture"):
        captured.synchronize()
    with pytest.raises(DeviceError, match="belongs to a capture"):
        markers.stream("other").wait(captured)


def test_arming_needs_a_captured_external_event_and_submitted_work(markers):
    stream, _, marker, _ = marked(markers)
    for event in (markers.event(), markers.event(external=True)):
        with pytest.raises(DeviceError, match="event"):
            stream.submit(event.rearm).result()
    with pytest.raises(DeviceError, match="submitted work"):
        marker.rearm()


def test_an_external_event_outside_a_capture_is_an_event_like_others(markers):
    stream = markers.stream("forward")
    ticket = markers.event(external=True).record(stream)
    ticket.synchronize()
    assert ticket.query()
