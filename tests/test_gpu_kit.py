"""The contract test kit on a CUDA device: what it holds, overwrites and reads there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from testkit.latereads import LATE, VOTES, InLayers, InMetadata, plain, subject_of

from warcore import ForwardMode, PluginRecord, SharedReadEnds
from warcore.contract import GraphKind
from warcore.testkit import checks, mark, observe
from warcore.testkit.detectors.cudadriver import Driver
from warcore.testkit.outcome import NotApplicable, Refuted, Unproven
from warcore.testkit.runs.check import checks_of
from warcore.testkit.stands.cell import Shape
from warcore.testkit.stands.cudagates import Gate, Position, position_of_marker
from warcore.testkit.stands.stand import Stand
from warcore.testkit.subject import Subject
from warcore_backend_torch_native import TorchNative
from warcore_graph_runner_breakable import Breakable
from warcore_graph_runner_full import Full

pytestmark = pytest.mark.gpu

IN = SharedReadEnds.IN_REPLAY
CAPTURED = [GraphKind.UNBROKEN, GraphKind.BREAKABLE]
BACKEND = {check.name: check for check in checks_of("backend")}
RUNNER = [check for check in checks_of("graph_runner") if check.kind == "graph_runner"]


@pytest.fixture
def device():
    from warcore.device.cuda import CudaDevice

    with CudaDevice() as device:
        yield device


@pytest.fixture
def gate(device):
    """A gate whose kernel is loaded."""
    pytest.importorskip("triton")
    gate = Gate(device)
    gate.put()
    device.synchronize()
    return gate


def stood(cls, kind):
    """A stand, and a decode batch whose rows have tokens before it."""
    stand = Stand(cls, Shape(), kind, device="cuda")
    stand.run(stand.batch(ForwardMode.EXTEND, [1, 2], (0, 0), (9, 4)))
    return stand, stand.batch(ForwardMode.DECODE, [1, 2], (9, 4), (1, 1))


# ---- gates ---------------------------------------------------------------------------------------


def test_a_stream_stands_at_a_gate_until_the_host_opens(device, gate):
    stream, event = device.stream("forward"), device.event()
    gate.shut()
    stream.submit(gate.put).result()
    ticket = event.record(stream)
    gate.wait()
    assert not ticket.query()
    gate.open()
    ticket.synchronize()
    assert gate.expired == 0


def test_another_stream_goes_on_meanwhile(device, gate):
    stream, other = device.stream("forward"), device.stream("schedule")
    memory = torch.zeros(1 << 16, device="cuda")
    memory.add_(0)
    device.synchronize()
    gate.shut()
    stream.submit(gate.put).result()
    gate.wait()
    other.submit(memory.add_, 1).result()
    device.event().record(other).synchronize()
    gate.open()
    device.synchronize()
    assert gate.expired == 0
    assert memory.sum() == 1 << 16


def test_a_captured_gate_holds_each_replay(device, gate):
    stream, graph = device.stream("forward"), device.graph()
    memory = torch.zeros(8, device="cuda")
    stream.submit(graph.capture, lambda: (gate.put(), memory.add_(1))).result()
    for count in (1, 2):
        gate.shut()
        stream.submit(graph.replay).result()
        gate.wait()
        gate.open()
        device.synchronize()
        assert memory.tolist() == [count] * 8
    assert gate.expired == 0


def test_a_gate_that_nobody_opens_lets_go_and_says_so(device, gate):
    gate._seconds = 0.2
    gate.shut()
    device.stream("forward").submit(gate.put).result()
    device.synchronize()
    assert gate.expired == 1


# ---- the marker ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CAPTURED)
def test_a_marker_is_neither_early_nor_late(gate, kind):
    stand, batch = stood(plain(IN), kind)
    with stand:
        assert position_of_marker(stand, batch) == Position(early=False, late=False)


def test_a_marker_would_be_found_early_and_late(gate):
    stand, batch = stood(plain(IN), GraphKind.UNBROKEN)
    with stand:
        around = stand.tables.around
        tables = SimpleNamespace(around=SimpleNamespace(before=around.after, after=around.before))
        crossed = SimpleNamespace(run=stand.run, tables=tables)
        assert position_of_marker(crossed, batch) == Position(early=True, late=True)


@pytest.mark.parametrize("kind", CAPTURED)
def test_what_the_host_does_at_a_marker_comes_before_the_layers(gate, kind):
    stand, batch = stood(plain(IN), kind)
    with stand:
        quiet, _ = stand.run(batch)
        slots = stand.backend.slots(batch)
        moved, fence = stand.run(batch, slots.zero_)
        assert fence.settled
        assert not torch.equal(quiet, moved)
        assert torch.equal(stand.run(batch)[0], quiet)


# ---- overwriting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vote", VOTES, ids=lambda vote: vote.name)
def test_right_backends_are_not_moved_by_overwriting(vote):
    subject = subject_of(plain(vote), "cuda", cells="[dv]e*-*")
    BACKEND["backend.overwritten"].run(subject)


@pytest.mark.parametrize("cls", LATE, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("kind", GraphKind)
def test_a_late_read_shows_in_each_kind_of_graph(cls, kind):
    stand, batch = stood(cls, kind)
    with stand:
        quiet, _ = stand.run(batch)
        assert torch.equal(quiet, stand.run(batch)[0])
        moved, fence = stand.run_overwritten(batch, stand.tables.slots.flip(0))
        assert fence.settled
        assert not torch.equal(quiet, moved)
        assert torch.equal(quiet, stand.run(batch)[0])


@pytest.mark.parametrize("cls", LATE, ids=lambda cls: cls.__name__)
def test_a_late_read_turns_the_check_red(cls):
    narrow = type(cls.__name__, (cls, plain(cls.vote)), {"vote": cls.vote})
    with pytest.raises(Refuted) as raised:
        BACKEND["backend.overwritten"].run(subject_of(narrow, "cuda"))
    assert "poison" in raised.value.failure.seen_by


# ---- addresses -----------------------------------------------------------------------------------


def addresses(cls):
    BACKEND["backend.no_late_address"].run(subject_of(cls, "cuda"))


def test_a_graph_that_gathers_before_its_marker_is_proved():
    addresses(plain(IN))


def test_a_graph_that_gathers_too_late_is_suspected_by_the_kernels_name():
    with pytest.raises(Unproven, match=r"suspect.*kernel \S+, is given an address in req_to_token"):
        addresses(type("Late", (InMetadata, plain(InMetadata.vote)), {}))
    with pytest.raises(Unproven, match="suspect"):
        addresses(type("Late", (InLayers, plain(IN)), {"vote": IN}))


def test_the_driver_tells_the_nodes_of_a_graph_and_what_they_are_given(device):
    device.keeps_graphs = True
    stream, graph = device.stream("forward"), device.graph()
    source, target = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    marker = device.event(external=True)

    def work():
        target.copy_(source)
        marker.record()
        target.add_(source)

    stream.submit(graph.capture, work).result()
    ((raw, markers),) = graph.sections
    nodes = Driver().read(raw.raw_cuda_graph())
    place = nodes.recording(markers[0].raw.cuda_event)
    assert place is not None
    before = [nodes.nodes[at] for at in nodes.ancestors(place)]
    after = [node for node in nodes.nodes if node not in before and node.kind == "kernel"]
    given = [each for node in before for each in node.given]
    assert any(each.start <= source.data_ptr() < each.stop for each in given)
    assert any(each.start == target.data_ptr() for node in after for each in node.given)
    assert all(node.name for node in after)
    stream.submit(lambda: (marker.rearm(), graph.replay())).result()
    device.synchronize()
    assert target.tolist() == [2.0] * 64


# ---- the plugins of this repository --------------------------------------------------------------


@pytest.mark.parametrize("name", ["parity", "captures", "marker_position", "no_late_address"])
def test_torch_native_keeps_the_contract_on_cuda(name):
    record = PluginRecord.of_class("backend", TorchNative)
    try:
        BACKEND[f"backend.{name}"].run(Subject(record, TorchNative, "cuda"))
    except NotApplicable as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("cls", [Full, Breakable], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("check", RUNNER, ids=str)
def test_a_graph_runner_keeps_the_contract_on_cuda(cls, check):
    if "cuda" not in check.devices:
        pytest.skip("held on the host device only")
    try:
        check.run(Subject(PluginRecord.of_class("graph_runner", cls), cls, "cuda"))
    except NotApplicable as why:
        pytest.skip(str(why))


def test_a_check_runs_in_a_process_of_its_own_that_opens_cuda_itself():
    items = {str(item): item for item in checks(TorchNative, device="cuda")}
    items["backend.votes"]()


# ---- observe -------------------------------------------------------------------------------------


TABLE = torch.arange(64 * 8).view(64, 8)


@pytest.fixture(params=["the default stream", "a stream of its own"])
def step(request):
    """`step(table, late)`: gathers on the GPU before the mark and, if `late`, after it too."""
    stream = torch.cuda.Stream() if request.param.startswith("a") else None

    def run(table, late):
        rows = torch.tensor([3, 9], device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            total = table.index_select(0, rows).sum()
            mark("read_done")
            if late:
                total = total + table.index_select(0, rows + 1).sum()
        return total

    return run


@pytest.mark.parametrize("late", [False, True])
def test_observe_finds_what_a_kernel_reads_after_the_mark_by_running_the_step_again(step, late):
    table = TABLE.cuda()
    found = observe(lambda: step(table, late), {"req_to_token": table}, rerun=True)
    judged = [access for access in found.after if "poison" in access.seen_by]
    assert bool(judged) is late
    assert "poison" in found.detectors
    assert torch.equal(table.cpu(), TABLE)


def test_observe_says_what_it_could_not_see_on_a_gpu(step):
    table = TABLE.cuda()
    found = observe(lambda: step(table, late=True), {"req_to_token": table})
    assert any("where only overwriting it can show" in text for text in found.missing)
    assert "guard" not in found.detectors
