"""Runs of calls as one: the same bits, the same order, and one by one where somebody watches."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest
import torch

from warcore.device import hostprogram
from warcore.device.host import HostDevice
from warcore.device.hostcalls import Call
from warcore.device.operations import OperationMode

aten = torch.ops.aten


@pytest.fixture
def inline():
    with HostDevice("inline") as device:
        yield device


def run(nodes):
    steps = hostprogram.joined(nodes)
    for step in steps:
        step()
    return len(steps)


def test_calls_between_other_steps_become_one_step_each():
    x, seen = torch.ones(2), []
    add = Call(aten.add_.Tensor, (x, x), {})
    assert run([add, add, lambda: seen.append(x.tolist()), add, add, add]) == 3
    assert seen == [[4, 4]]
    assert x.tolist() == [32, 32]


def test_a_single_call_stays_one():
    x = torch.ones(2)
    assert run([Call(aten.add_.Tensor, (x, x), {})]) == 1
    assert x.tolist() == [2, 2]


def test_every_kind_of_argument_arrives():
    x, into = torch.arange(6.0).view(2, 3), torch.zeros(2, 3)
    rows, wide = torch.tensor([1, 0]), torch.zeros(2, 6)
    total, empty = torch.zeros(()), torch.zeros(())
    calls = [
        Call(aten.index.Tensor_out, (x, [None, torch.tensor([2, 1, 0])]), {"out": into}),
        Call(aten.cat.out, ([into, x], -1), {"out": wide}),
        Call(aten.mul.out, (into, 0.5), {"out": into}),
        Call(aten.index_select.default, (into, 0, rows), {}, (0,), (into,)),
        Call(aten.sum.IntList_out, (into, [0, 1], False), {"dtype": None, "out": total}),
        Call(aten.amax.out, (into, [], False), {"out": empty}),
        Call(aten.clamp_.default, (wide,), {"max": 4}),
        Call(aten.sort.default, (wide, -1, True), {}, (0,), (wide,)),
    ]
    assert run(calls) == 1
    assert into.tolist() == [[2.5, 2.0, 1.5], [1.0, 0.5, 0.0]]
    assert total.item() == 7.5
    assert empty.item() == 2.5
    assert wide.tolist() == [[2, 2, 1, 1, 0, 0], [4, 4, 4, 4, 3, 3]]


def test_a_plugins_own_operation_is_part_of_it(inline):
    with torch.library._scoped_library("warcore_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        x, stream, graph = torch.ones(2), inline.stream("forward"), inline.graph()
        twice = torch.ops.warcore_test.twice
        output = stream.submit(graph.capture, lambda: twice(twice(x)) * 2).result()
        x.fill_(3)
        stream.submit(graph.replay).result()
    assert output.tolist() == [24, 24]


def test_whoever_watches_the_operations_of_the_thread_sees_each_one(inline):
    x, stream, graph = torch.ones(2), inline.stream("forward"), inline.graph()
    stream.submit(graph.capture, lambda: torch.neg_(x * 2 + 1)).result()

    class Watch(OperationMode):
        seen = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += (func.overloadpacket.__name__,)
            return func(*args, **(kwargs or {}))

    def watched():
        with Watch() as watch:
            graph.replay()
        return watch.seen

    assert stream.submit(watched).result() == ("mul", "add", "neg_")


def test_where_there_are_no_programs_calls_are_made_one_by_one(inline, monkeypatch):
    monkeypatch.setattr(hostprogram, "_works", lambda: False)
    x, stream, graph = torch.ones(2), inline.stream("forward"), inline.graph()
    output = stream.submit(graph.capture, lambda: x * 2 + 1).result()
    x.fill_(3)
    stream.submit(graph.replay).result()
    assert output.tolist() == [7, 7]


def test_this_build_of_torch_has_programs():
    assert hostprogram._works()


def test_an_error_in_a_program_names_what_went_wrong_and_a_later_replay_works(inline):
    x, at = torch.arange(4.0), torch.tensor([1])
    stream, graph = inline.stream("forward"), inline.graph()
    output = stream.submit(graph.capture, lambda: (x * 2).index_select(0, at) + 1).result()
    at.fill_(9)
    with pytest.raises(RuntimeError, match="index out of range"):
        stream.submit(graph.replay).result()
    at.fill_(3)
    stream.submit(graph.replay).result()
    assert output.tolist() == [7]
    assert torch._C._get_graph_executor_optimize()


def test_a_program_runs_to_its_end_while_another_thread_keeps_the_lock():
    """Not even to let go of a tensor does it need Python: this thread gives the lock to nobody."""
    tensors = [torch.zeros(64, 64) for _ in range(300)]
    last = ctypes.c_float.from_address(tensors[-1].data_ptr())
    one = torch.ones(64, 64)
    pairs = zip([one, *tensors], tensors, strict=False)
    calls = [Call(aten.add.out, (a, one), {"out": b}) for a, b in pairs]
    (step,) = hostprogram.joined(calls)
    step()
    tensors[-1].zero_()
    begins, before = threading.Lock(), sys.getswitchinterval()

    def work():
        begins.release()
        step()

    begins.acquire()
    thread = threading.Thread(target=work)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        begins.acquire()
        for _ in range(10**8):
            if last.value == len(calls) + 1:
                break
    finally:
        sys.setswitchinterval(before)
    assert last.value == len(calls) + 1
    thread.join()
