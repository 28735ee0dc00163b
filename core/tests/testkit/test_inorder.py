"""What the kit does where a replay is one launch: overwrites that are captured, gates, positions.

The host device stands in for CUDA: its captures hold the overwrite like any other call.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from testkit.latereads import LATE, VOTES, InLayers, plain, subject_of

from warcore import ForwardMode, SharedReadEnds
from warcore.contract import GraphKind
from warcore.device import open_device
from warcore.testkit.outcome import Unproven
from warcore.testkit.runs.check import checks_of
from warcore.testkit.stands import cudagates, inorder
from warcore.testkit.stands.cell import Shape, cell_of
from warcore.testkit.stands.cudagates import Gate, position_of_marker
from warcore.testkit.stands.inorder import AroundMarker, Held
from warcore.testkit.stands.late import _patterns
from warcore.testkit.stands.paged import Paged, paged
from warcore.testkit.stands.stand import Stand
from warcore.testkit.stands.walk import quiet_torch

CHECKS = {check.name: check for check in checks_of("backend")}


@pytest.fixture
def one_launch(monkeypatch):
    """Stands whose replays nobody can come between, and no gates."""
    monkeypatch.setattr(Stand, "one_launch", True)
    monkeypatch.setattr(inorder, "why_no_gates", lambda: "no kernel can be held here")


# ---- the overwrite in a capture ------------------------------------------------------------------


@pytest.mark.parametrize("vote", VOTES, ids=lambda vote: vote.name)
def test_right_backends_are_not_moved_by_captured_overwrites(one_launch, vote):
    CHECKS["backend.overwritten"].run(subject_of(plain(vote)))


@pytest.mark.parametrize("cls", LATE, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("kind", GraphKind)
def test_a_late_read_shows_in_each_kind_of_graph(one_launch, cls, kind):
    with Stand(cls, Shape(), kind) as stand:
        rows = [1, 2]
        stand.run(stand.batch(ForwardMode.EXTEND, rows, (0, 0), (9, 4)))
        batch = stand.batch(ForwardMode.DECODE, rows, (9, 4), (1, 1))
        quiet, _ = stand.run(batch)
        output, fence = stand.run_overwritten(batch, stand.tables.slots.flip(0))
        assert fence.settled
        assert not torch.equal(quiet, output)


def test_one_capture_serves_every_pattern_and_changes_nothing_by_itself(one_launch):
    with Stand(InLayers, Shape(), GraphKind.UNBROKEN) as stand:
        rows = [1, 2]
        stand.run(stand.batch(ForwardMode.EXTEND, rows, (0, 0), (9, 4)))
        batch = stand.batch(ForwardMode.DECODE, rows, (9, 4), (1, 1))
        quiet, _ = stand.run(batch)
        outputs = [
            stand.run_overwritten(batch, slots)[0]
            for slots in (torch.zeros_like(stand.tables.slots), stand.tables.slots.flip(0))
        ]
        assert not torch.equal(*outputs)
        assert torch.equal(stand.run(batch)[0], quiet)


def test_the_canary_is_a_slot_that_no_request_has_come_to_and_holds_nan():
    shape = Shape(windows=(None, 7))
    with quiet_torch(), Stand(Paged, shape, GraphKind.NONE) as stand, torch.inference_mode():
        batch, _ = stand.steps(cell_of(stand.shape, ForwardMode.DECODE, GraphKind.NONE, (40, 9)))
        *_, canary = _patterns(stand, batch).values()
        (slot,) = canary.unique().tolist()
        for row, length in zip(batch.rows.tolist(), batch.seq_lens.tolist(), strict=True):
            assert slot not in stand.tables.slots[row, :length]
        for number, layer in enumerate(stand.kv):
            (at,) = (stand.tables.slots == slot).nonzero()
            page = int(stand.tables.slots_in(number)[tuple(at)]) // stand.shape.page_size
            assert all(memory[page].isnan().all() for memory in layer.values())


def test_the_table_is_put_back_even_if_the_step_fails(one_launch, monkeypatch):
    with Stand(Paged, Shape(), GraphKind.NONE) as stand:
        batch = stand.batch(ForwardMode.DECODE, [1], (3,), (1,))

        def fail(*_):
            raise RuntimeError("mine")

        monkeypatch.setattr(stand.backend, "forward", fail)
        with pytest.raises(RuntimeError, match="mine"):
            stand.run_overwritten(batch, torch.zeros_like(stand.tables.slots))
        assert torch.equal(stand.tables.table.long(), stand.tables.slots)


def test_what_cannot_be_held_is_said_and_not_taken_for_seen(one_launch):
    with Stand(paged(SharedReadEnds.IN_REPLAY), Shape(), GraphKind.UNBROKEN) as stand:
        batch = stand.batch(ForwardMode.DECODE, [1, 2], (9, 4), (1, 1))
        with pytest.raises(Unproven, match="no kernel can be held here"):
            stand.run(batch, lambda: None)
        with pytest.raises(Unproven, match="no kernel can be held here"):
            position_of_marker(stand, batch)


# ---- gates ---------------------------------------------------------------------------------------


@pytest.fixture
def device():
    with open_device("host", "inline") as device:
        yield device


class Launch:
    """A replay on a GPU, played by a thread: gate, event, gate; in this order, or in another."""

    def __init__(self, device, order=("before", "event", "after")):
        self.around = SimpleNamespace(
            before=Gate(device, 5.0), after=Gate(device, 5.0), open=self._open
        )
        self.tables = SimpleNamespace(around=self.around)
        self.device, self.schedule = device, device.stream("schedule")
        self.order = order
        self.done = threading.Event()
        self.seen = []
        """What had happened when the body ran."""

    def _open(self):
        self.around.before.open()
        self.around.after.open()

    def _play(self):
        for step in self.order:
            if step == "event":
                self.done.set()
            else:
                stand_still(getattr(self.around, step)._state)
        self.seen.append("body")

    def run(self, batch, end=None, *, hold=None):
        """As a stand runs a replay."""
        self.done.clear()
        hold = hold or Held(self.around, self.device, self.schedule, end)
        hold.offered()
        thread = threading.Thread(target=self._play)
        thread.start()
        try:
            hold.launched(SimpleNamespace(query=self.done.is_set))
        finally:
            hold.over()
            thread.join()


def stand_still(state):
    """What the kernel does."""
    state[1] += 1
    while not state[0]:
        pass


def position(device, *order):
    return position_of_marker(Launch(device, order), None)


def test_an_event_between_what_it_waits_for_and_what_it_does_not_is_in_its_place(device):
    assert position(device, "before", "event", "after") == cudagates.Position(False, False)


def test_an_event_that_does_not_wait_is_early(device):
    assert position(device, "event", "before", "after").early


def test_an_event_that_waits_for_too_much_is_late(device):
    assert position(device, "before", "after", "event").late


def test_what_the_host_does_at_a_marker_comes_before_what_follows(device, monkeypatch):
    launch = Launch(device)
    monkeypatch.setattr(launch.schedule, "wait", lambda ticket: None)
    launch.run(None, lambda: launch.seen.append("end"))
    assert launch.seen == ["end", "body"]


def test_a_gate_that_nothing_comes_to_is_no_verdict(device):
    gate = Gate(device, 0.01)
    gate.shut()
    with pytest.raises(Unproven, match=r"no stream came to a gate within 0\.01 s"):
        gate.wait()


def test_a_stream_that_went_on_by_itself_is_no_verdict(device):
    gate = Gate(device)
    probe = cudagates.Probe(gate)
    probe.offered()
    gate._state[1] += 1

    def too_long():
        gate._state[2] += 1
        return True

    with pytest.raises(Unproven, match="went on while it was asked about"):
        probe.launched(SimpleNamespace(query=too_long))


def test_a_marker_is_recorded_in_front_of_the_overwrite_and_other_events_are_left_alone(
    device, monkeypatch
):
    monkeypatch.setattr(inorder, "why_no_gates", lambda: "none here")
    table = torch.zeros(2, 4, dtype=torch.int32)
    around = AroundMarker(device, table)
    stream = device.stream("forward")
    graph, marker = device.graph(), device.event(external=True)
    stream.submit(graph.capture, lambda: (marker.record(), table.add_(1))).result()
    around.choose(torch.full((2, 4), 5))
    device.event().record(stream)
    assert table.tolist() == [[1] * 4] * 2
    stream.submit(lambda: (marker.rearm(), graph.replay())).result()
    assert table.tolist() == [[6] * 4] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_kernel_of_a_gate_compiles_and_looks_anew_each_time_round():
    pytest.importorskip("triton")
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    from warcore.testkit.stands.gate_kernel import hold

    source = compiler.ASTSource(
        fn=hold, signature={"state": "*i32", "nanoseconds": "i64"}, constexprs={}
    )
    built = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    loop = built.asm["ptx"].split("$L__BB0_1:")[1].split("bra")[0]
    assert "ld.volatile.global" in loop
    assert "%globaltimer" in loop
