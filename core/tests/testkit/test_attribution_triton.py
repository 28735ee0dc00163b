"""Kernels in Triton's interpreter: which lanes touch what, at which line of which kernel."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from warcore.testkit.detectors import triton_reads
from warcore.testkit.detectors.attribution import Attribution

pytest.importorskip("triton")
KERNELS = Path(__file__).with_name("triton_kernels.py")


@pytest.fixture(scope="module")
def kernels():
    """What is jitted while TRITON_INTERPRET is set is interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec = importlib.util.spec_from_file_location("warcore_test_kernels", KERNELS)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def table():
    return torch.arange(32, dtype=torch.int32)


def launched(table, launch, *args):
    """What the launch touches: (kind, operation, first byte, one past the last)."""
    with Attribution({"table": table}) as seen:
        launch(*args)
    assert seen.missing == ()
    return [(a.kind, a.operation, a.start, a.stop, a.place.text) for a in seen.accesses]


def test_this_triton_is_one_that_can_be_seen_into(kernels):
    """The canary: it falls silent when a new Triton moves its loads and stores."""
    assert triton_reads._why_not(sys.modules["triton.runtime.interpreter"]) is None


def test_a_load_is_a_read_of_the_lanes_that_take_part(kernels, table):
    target = torch.zeros_like(table)
    seen = launched(table, lambda: kernels.copy_some[(2,)](table, target, 20, BLOCK=16))
    line = "values = tl.load(source + lane, mask=lane < count)  # the load"
    assert seen == [("read", "copy_some", 0, 80, line)]
    assert target.tolist() == [*range(20), *[0] * 12]


def test_the_place_is_the_kernels_own_file(kernels, table):
    with Attribution({"table": table}) as seen:
        kernels.copy_some[(2,)](table, torch.zeros_like(table), 20, BLOCK=16)
    (access,) = seen.accesses
    assert access.place.file == str(KERNELS)
    lines = KERNELS.read_text().splitlines()
    assert lines[access.place.line - 1].strip() == access.place.text
    assert access.count == 2


def test_a_store_is_a_write_and_the_launch_itself_is_nothing(kernels, table):
    source = torch.zeros_like(table)
    seen = launched(table, lambda: kernels.copy_some[(1,)](source, table, 3, BLOCK=16))
    line = "tl.store(target + lane, values, mask=lane < count)  # the store"
    assert seen == [("write", "copy_some", 0, 12, line)]


def test_a_pointer_that_no_lane_follows_is_no_access(kernels, table):
    assert launched(table, lambda: kernels.nothing[(1,)](table)) == []
    target = torch.zeros_like(table)
    assert launched(table, lambda: kernels.copy_some[(1,)](table, target, 0, BLOCK=16)) == []


def test_a_load_in_a_function_of_the_kernel_has_that_line(kernels, table):
    target = torch.zeros(1, dtype=torch.int32)
    seen = launched(table, lambda: kernels.count_up[(1,)](table, target))
    assert seen == [("read", "count_up", 12, 16, "return tl.load(pointer) + 1  # the load within")]


def test_an_atomic_is_a_read_and_a_write(kernels, table):
    seen = launched(table, lambda: kernels.add_one[(1,)](table))
    assert [each[:4] for each in seen] == [("read", "add_one", 8, 12), ("write", "add_one", 8, 12)]


def test_only_the_watched_part_of_a_tensor_counts(kernels, table):
    target = torch.zeros_like(table)
    seen = launched(table[8:12], lambda: kernels.copy_some[(1,)](table, target, 16, BLOCK=16))
    assert [each[2:4] for each in seen] == [(0, 16)]


def test_a_custom_op_around_a_kernel_is_what_its_lanes_touch(kernels, table):
    seen = launched(table, torch.ops.warcore_tests_triton.head, table, 5)
    assert [each[:4] for each in seen] == [("read", "copy_some", 0, 20)]
    assert launched(table, torch.ops.warcore_tests_triton.head, table, 0) == []


def test_a_thread_hears_its_own_launches_only(kernels, table):
    target = torch.zeros_like(table)
    args = table, target, 20
    with Attribution({"table": table}) as seen:
        threads = [
            threading.Thread(target=kernels.copy_some[(2,)], args=args, kwargs={"BLOCK": 16})
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen.accesses == []
    assert target.tolist() == [*range(20), *[0] * 12]


def test_afterwards_the_interpreter_is_as_it_was(kernels, table):
    interpreter = sys.modules["triton.runtime.interpreter"]
    before = interpreter._interpreter, interpreter.GridExecutor.__call__
    with Attribution({"table": table}), Attribution({"table": table}):
        assert interpreter._interpreter is not before[0]
    assert (interpreter._interpreter, interpreter.GridExecutor.__call__) == before


def test_another_make_of_triton_is_not_available_and_no_failure(monkeypatch, table):
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", SimpleNamespace())
    with Attribution({"table": table}) as seen:
        table.sum()
    (why,) = seen.missing
    assert why.startswith("Triton's interpreter: not available: triton 3")
    assert len(seen.accesses) == 1


def test_where_no_kernel_is_interpreted_nothing_is_missing(monkeypatch, table):
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with Attribution({"table": table}) as seen:
        pass
    assert seen.missing == ()
