"""Attribution of a device's work: streams, phases, captures, replays, seeded schedules."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from warcore.device.host import HostDevice, host_device
from warcore.device.operations import noting_origins, origins_wanted
from warcore.device.virtual import VirtualDevice
from warcore.errors import DeviceError
from warcore.shared import SharedBuffers
from warcore.testkit.detectors.attribution import Attribution

HERE = __file__
ROW = 8 * 4


@torch.library.custom_op("warcore_tests_device::first", mutates_args=())
def first(table: torch.Tensor) -> torch.Tensor:
    return table[0] + table[0]


@pytest.fixture(params=["inline", "threads", "seeded:3", "virtual"])
def device(request):
    with VirtualDevice() if request.param == "virtual" else host_device(request.param) as device:
        yield device


@pytest.fixture
def table():
    return torch.arange(6 * 8, dtype=torch.int32).view(6, 8)


def read(table, row):
    return table[row] + 1  # the read


def test_work_is_seen_on_whatever_thread_it_runs_and_has_its_stream(device, table):
    attribution = Attribution({"table": table})
    with device.watched_by(attribution):
        for name in ("forward", "schedule"):
            device.stream(name).submit(read, table, 1).result()
    (one, other) = attribution.accesses
    assert (one.stream, one.operation, one.start) == ("forward", "aten.add", ROW)
    assert other.stream == "schedule"
    assert one.place == other.place
    assert (one.place.file, one.place.text) == (HERE, "return table[row] + 1  # the read")


def test_what_the_host_does_is_seen_where_it_enters(device, table):
    with Attribution({"table": table}) as attribution, device.watched_by(attribution):
        stream = device.stream("forward")
        stream.submit(read, table, 1).result()
        read(table, 0)
    assert [(a.stream, a.count) for a in attribution.accesses] == [("", 1), ("forward", 1)]


def test_a_touch_has_the_phase_that_the_core_told(device, table):
    def work():
        read(table, 0)
        device.phase("gates")
        read(table, 1)
        device.phase("body")
        read(table, 2)

    attribution = Attribution({"table": table})
    with device.watched_by(attribution):
        stream = device.stream("forward")
        stream.submit(work).result()
        stream.submit(read, table, 5).result()
    assert [(a.phase, a.start // ROW, a.stop // ROW, a.count) for a in attribution.accesses] == [
        ("", 0, 6, 2),
        ("gates", 1, 2, 1),
        ("body", 2, 3, 1),
    ]


def test_work_inside_other_work_is_of_its_own_stream():
    table = torch.zeros(6, 8, dtype=torch.int32)
    with HostDevice("inline") as device:
        outer, inner = device.stream("outer"), device.stream("inner")

        def work():
            device.phase("body")
            inner.submit(read, table, 1).result()
            read(table, 2)

        attribution = Attribution({"table": table})
        with device.watched_by(attribution):
            outer.submit(work).result()
    assert [(a.stream, a.phase, a.count) for a in attribution.accesses] == [
        ("inner", "", 1),
        ("outer", "body", 1),
    ]


def test_work_that_fails_leaves_its_thread_as_it_was(device, table):
    def work():
        read(table, 1)
        raise LookupError

    def modes():
        return torch.utils._python_dispatch._get_current_dispatch_mode_stack(), origins_wanted()

    stream = device.stream("forward")
    before = stream.submit(modes).result()
    attribution = Attribution({"table": table})
    with device.watched_by(attribution), pytest.raises(LookupError):
        stream.submit(work).result()
    assert len(attribution.accesses) == 1
    assert stream.submit(modes).result() == before


def test_the_order_is_the_same_however_threads_ran(table):
    def run():
        with HostDevice("threads") as device:
            streams = [device.stream(name) for name in ("b", "a", "c")]
            attribution = Attribution({"table": table})
            with device.watched_by(attribution):
                pendings = [s.submit(read, table, row) for row in range(4) for s in streams]
                for pending in pendings:
                    pending.result()
            return attribution.accesses

    accesses = run()
    assert [a.stream for a in accesses] == ["a", "b", "c"]
    assert all(a.count == 4 and (a.start, a.stop) == (0, 4 * ROW) for a in accesses)
    assert all(run() == accesses for _ in range(5))


def test_a_device_is_watched_once(device, table):
    attribution = Attribution({"table": table})
    with (
        device.watched_by(attribution),
        pytest.raises(DeviceError, match="watched already"),
        device.watched_by(attribution),
    ):
        pass
    assert device.observer is None


def test_the_core_is_named_only_where_nobody_else_is():
    with HostDevice("threads") as device:
        stream = device.stream("schedule")
        shared = SharedBuffers(device, stream, rows=2, context=8, page_size=4)
        attribution = Attribution({"table": shared.tables.req_to_token})
        with device.watched_by(attribution):
            shared.write_pages(torch.tensor([2]), torch.tensor([5])).result()
    (access,) = attribution.accesses
    assert (access.kind, access.start, access.stop) == ("write", 32, 48)
    assert access.place.file.endswith("warcore/shared.py")


def test_each_touch_is_told_as_it_comes(device, table):
    heard = []

    def tell(access):
        heard.append((access.stream, access.start // ROW, access.count, device.current_stream()))

    stream = device.stream("forward")
    with device.watched_by(Attribution({"table": table}, tell)):
        for row in (1, 4):
            stream.submit(read, table, row).result()
    assert heard == [("forward", 1, 1, stream), ("forward", 4, 1, stream)]


# Graphs


def captured(device, stream, table):
    """A graph that reads `table` in two ways, and writes it."""
    rows, out = torch.tensor([1, 2]), torch.zeros(2, 8, dtype=torch.int32)

    def step():
        out.copy_(table.index_select(0, rows))  # the gather
        out.add_(table[5])  # the last row
        table[0].fill_(4)  # the write

    graph = device.graph()
    stream.submit(graph.capture, step).result()
    return graph


EXPECTED = [
    ("read", "aten.index_select", ROW, 3 * ROW, "# the gather"),
    ("read", "aten.add_", 5 * ROW, 6 * ROW, "# the last row"),
    ("write", "aten.fill_", 0, ROW, "# the write"),
]


def facts(accesses):
    return [
        (a.kind, a.operation, a.start, a.stop, a.place.text[-len(text) :])
        for a, (*_, text) in zip(accesses, EXPECTED, strict=True)
    ]


def test_a_capture_is_seen_with_its_lines(device, table):
    attribution = Attribution({"table": table})
    with device.watched_by(attribution):
        captured(device, device.stream("forward"), table)
    assert facts(attribution.accesses) == EXPECTED
    assert {a.place.file for a in attribution.accesses} == {HERE}


def test_each_call_of_a_replay_has_the_line_of_its_capture(device, table):
    stream = device.stream("forward")
    with noting_origins():
        graph = captured(device, stream, table)
    attribution = Attribution({"table": table})

    def replay():
        device.phase("replay")
        graph.replay()
        graph.replay()

    with device.watched_by(attribution):
        stream.submit(replay).result()
    assert facts(attribution.accesses) == EXPECTED
    assert {(a.phase, a.count, a.stream) for a in attribution.accesses} == {
        ("replay", 2, "forward")
    }


def test_without_an_attribution_at_its_capture_a_replay_has_the_line_that_replays(device, table):
    stream = device.stream("forward")
    graph = captured(device, stream, table)
    assert not graph._recorder.origins
    attribution = Attribution({"table": table})

    def replay():
        graph.replay()  # here

    with device.watched_by(attribution):
        stream.submit(replay).result()
    assert [a.place.text for a in attribution.accesses] == ["graph.replay()  # here"] * 3


def test_a_watched_replay_does_what_an_unwatched_one_does(device, table):
    stream = device.stream("forward")
    attribution = Attribution({"table": table})
    with device.watched_by(attribution):
        graph = captured(device, stream, table)
        table.fill_(9)
        stream.submit(graph.replay).result()
        watched = table.clone()
    table.fill_(9)
    stream.submit(graph.replay).result()
    assert torch.equal(table, watched)


def test_what_runs_outside_the_graph_has_its_own_line(device, table):
    stream, graph = device.stream("forward"), device.graph()

    def step():
        return graph.outside(lambda: read(table, 3)) + 1

    attribution = Attribution({"table": table})
    with device.watched_by(attribution):
        stream.submit(graph.capture, step).result()
        stream.submit(graph.replay).result()
    (access,) = attribution.accesses
    assert (access.place.text, access.count) == ("return table[row] + 1  # the read", 2)


def test_a_custom_op_is_seen_inside_at_a_replay_too(device, table):
    stream, graph = device.stream("forward"), device.graph()
    attribution = Attribution({"table": table})
    with device.watched_by(attribution):
        stream.submit(graph.capture, lambda: torch.ops.warcore_tests_device.first(table)).result()
        stream.submit(graph.replay).result()
    (access,) = attribution.accesses
    assert access.place.text == "return table[0] + table[0]"
    assert access.count == 2


def test_a_failed_capture_keeps_no_lines(device, table):
    stream, graph = device.stream("forward"), device.graph()

    def step():
        table[1] + 1
        table[0, 0].item()

    attribution = Attribution({"table": table})
    with device.watched_by(attribution), pytest.raises(DeviceError, match="leaves the device"):
        stream.submit(graph.capture, step).result()
    assert not graph._recorder.origins


# Schedules


def schedule_of(seed, watch):
    """In which order three seeded streams got on, with and without being watched."""
    table, log = torch.zeros(6, 8), []
    with HostDevice("seeded", seed) as device:
        attribution = Attribution({"table": table})

        def work(name):
            for turn in range(6):
                torch.ops.warcore_tests_device.first(table)
                torch.nn.functional.linear(table, table)
                table.index_select(0, torch.tensor([1])).tolist()
                log.append((name, turn))

        with device.watched_by(attribution) if watch else nullcontext():
            pendings = [device.stream(name).submit(work, name) for name in "abc"]
            for pending in pendings:
                pending.result()
    return log


@pytest.mark.parametrize("seed", range(6))
def test_a_seeded_schedule_is_the_same_when_watched(seed):
    assert schedule_of(seed, watch=True) == schedule_of(seed, watch=False)
