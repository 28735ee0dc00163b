"""The page guard: every touch of a closed view is seen, whoever makes it, and nothing else is."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import pytest
import torch

from warcore.device.host import host_device
from warcore.errors import WarcoreError
from warcore.testkit.access import Access
from warcore.testkit.detectors.faults import PAGE, fault_handler
from warcore.testkit.detectors.guard import PageGuard, supported

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

SHAPE = 64, 1024
"""Of int32: a row is a page."""


@pytest.fixture
def guard():
    with PageGuard() as guard:
        yield guard


@pytest.fixture
def table(guard):
    """(writer, reader), counting."""
    writer, reader = guard.allocate("req_to_token", SHAPE, torch.int32)
    writer.copy_(torch.arange(writer.numel()).view(SHAPE))
    return writer, reader


def pages(faults):
    return sorted(fault.offset // PAGE for fault in faults)


@pytest.fixture
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def memmove(library):
    """Read a row as a C kernel does that has nothing but an address."""

    def read(reader):
        target = ctypes.create_string_buffer(PAGE)
        function = library.memmove
        function.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
        function(target, reader.data_ptr() + 3 * PAGE, PAGE)

    return read


TOUCHES = {
    "index": (lambda t: t[torch.tensor([3, 40])], [3, 40]),
    "index_select": (lambda t: t.index_select(0, torch.tensor([3])), [3]),
    "a view of a view": (lambda t: t.view(-1)[3 * 1024 :].view(-1, 1024)[0, 5:9].sum(), [3]),
    "item": (lambda t: t[3, 7].item(), [3]),
    "tolist": (lambda t: t[3:5].tolist(), [3, 4]),
    "numpy": (lambda t: t.numpy()[3].sum(), [3]),
    "memoryview": (lambda t: bytes(memoryview(t.numpy()[3])), [3]),
    "dlpack": (lambda t: torch.from_dlpack(t)[3].clone(), [3]),
    "a C kernel with the lock held": (memmove(ctypes.PyDLL(None)), [3]),
    "a C kernel without it": (memmove(ctypes.CDLL(None)), [3]),
    "a value that nobody uses": (lambda t: t.eq(0), list(range(64))),
    "another thread": (lambda t: in_thread(t[3].clone), [3]),
}


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(("touch", "expected"), TOUCHES.values(), ids=TOUCHES)
def test_a_read_of_the_closed_view_is_seen_and_the_program_goes_on(guard, table, touch, expected):
    with guard.window():
        touch(table[1])
    assert pages(guard.faults) == expected
    assert {fault.kind for fault in guard.faults} == {"read"}
    assert {fault.buffer for fault in guard.faults} == {"req_to_token"}


def test_the_value_read_is_the_one_that_is_there(guard, table):
    with guard.window():
        assert table[1][3, :3].tolist() == [3072, 3073, 3074]


def test_workers_of_a_kernel_are_seen_and_count_to_the_stream_of_the_window(
    guard, table, two_cores
):
    with guard.window("forward"):
        table[1].add(1)
    assert pages(guard.faults) == list(range(64))
    native = {fault.stream for fault in guard.faults if fault.thread.startswith("native")}
    assert native == {"forward"}
    assert len({fault.thread for fault in guard.faults}) == 2


def test_a_write_is_told_from_a_read(guard, table):
    with guard.window():
        table[1][3] = 7
    assert [(fault.kind, fault.offset) for fault in guard.faults] == [("write", 3 * PAGE)]
    assert table[0][3, 0] == 7


def test_the_writers_view_is_never_closed(guard, table):
    writer, reader = table
    with guard.window():
        writer[3] = 9
        assert writer.sum()
        in_thread(lambda: writer.index_fill_(0, torch.tensor([5]), 8))
    assert not guard.faults
    assert [reader[3, 0], reader[5, 0]] == [9, 8]


def test_nothing_is_seen_before_and_after_the_window(guard, table):
    table[1].sum()
    with guard.window():
        pass
    table[1].sum()
    assert not guard.look()
    assert not guard.faults


def test_a_page_is_seen_once_until_it_is_armed_again(guard, table):
    window = guard.window()
    window.close()
    table[1][3].clone()
    table[1][3].clone()
    window.rearm()
    table[1][3].clone()
    assert pages(window.open()) == [3, 3]


def test_a_fault_knows_the_byte_and_the_library_and_becomes_an_access(guard, table):
    with guard.window("forward"):
        table[1].numpy()[3, 7]
    (fault,) = guard.faults
    assert "multiarray" in fault.code
    assert fault.thread == threading.current_thread().name
    assert fault.access() == Access(
        "req_to_token", "read", 3 * PAGE + 28, 4 * PAGE, seen_by=frozenset({"guard"})
    )


def test_the_last_page_ends_with_the_buffer(guard):
    _, reader = guard.allocate("full_to_swa", (10,), torch.int32)
    with guard.window():
        reader[2].item()
    assert [(fault.offset, fault.stop) for fault in guard.faults] == [(8, 40)]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1,)])
def test_a_buffer_has_any_shape(guard, shape):
    writer, reader = guard.allocate("odd", shape, torch.bool)
    assert writer.shape == reader.shape == torch.Size(shape)
    assert not reader.any()
    with guard.window():
        reader.any()


# ---- windows -------------------------------------------------------------------------------------


def test_a_window_closes_the_buffers_that_it_names(guard, table):
    _, other = guard.allocate("full_to_swa", (4,), torch.int32)
    with guard.window(buffers=["full_to_swa"]):
        table[1].sum()
        other.sum()
    assert [fault.buffer for fault in guard.faults] == ["full_to_swa"]


def test_overlapping_windows_keep_a_buffer_closed_until_the_last_is_open(guard, table):
    one, other = guard.window(), guard.window()
    one.close()
    other.close()
    assert not one.open()
    table[1][3].clone()
    assert pages(other.open()) == [3]
    table[1][3].clone()
    assert len(guard.faults) == 1


def test_where_only_writes_are_unwelcome_reads_are_not_seen(guard, table):
    with guard.window(writes_only=True):
        table[1].sum()
        table[1][3, 4] = 1
    assert [(fault.kind, fault.offset) for fault in guard.faults] == [("write", 3 * PAGE + 16)]


def test_the_stricter_of_two_windows_holds(guard, table):
    outer, inner = guard.window(writes_only=True), guard.window()
    outer.close()
    inner.close()
    table[1][3].clone()
    assert pages(inner.open()) == [3]
    table[1][4].clone()
    table[1][3] = 0
    assert [fault.kind for fault in outer.open()] == ["write"]


def test_a_window_is_used_again_and_again(guard, table):
    window = guard.window()
    for _ in range(3):
        window.close()
        table[1][3].clone()
        assert pages(window.open()) == [3]
        assert not window.open()


def test_misuse_is_refused(guard, table):
    with pytest.raises(WarcoreError, match="no guarded buffer is called 'kv'"):
        guard.window(buffers=["kv"])
    window = guard.window()
    window.close()
    with pytest.raises(WarcoreError, match="closed already"):
        window.close()
    with pytest.raises(WarcoreError, match="in force already"):
        guard.__enter__()
    idle = PageGuard()
    with pytest.raises(WarcoreError, match="not in force"):
        idle.window().close()


def test_a_second_buffer_of_one_name_has_another(guard, table):
    guard.allocate("req_to_token", (1,), torch.int32)
    assert list(guard.buffers) == ["req_to_token", "req_to_token#2"]


def test_a_system_call_that_is_handed_closed_memory_is_explained(guard, table):
    read, write = os.pipe()
    with (
        pytest.raises(WarcoreError, match=r"memory of req_to_token that is closed.*Bad address"),
        guard.window(),
    ):
        os.write(write, table[1].numpy())
    assert os.write(write, table[1][:1].numpy()) == PAGE
    os.close(read)
    os.close(write)


def test_other_errors_pass_as_they_are(guard, table):
    assert guard.explain(OSError(2, "No such file")) is None
    with pytest.raises(ZeroDivisionError), guard.window():
        1 / 0  # noqa: B018
    table[1].sum()
    assert not guard.look()


# ---- what is inside ------------------------------------------------------------------------------


def test_views_lie_inside_and_what_was_made_anew_does_not(guard, table):
    writer, reader = table
    assert guard.name_of(reader[3:, ::2].t()) == "req_to_token"
    assert guard.name_of(reader.contiguous()) == "req_to_token"
    for other in (reader.t().contiguous(), reader.to(torch.int64), reader.clone(), writer):
        assert guard.name_of(other) is None


def test_memory_lives_as_long_as_a_tensor_over_it_and_no_longer():
    gc.collect()
    before = fault_handler().watched
    with PageGuard() as guard:
        view = guard.allocate("table", SHAPE, torch.int32)[1][3]
    del guard
    gc.collect()
    assert view.sum() == 0
    assert fault_handler().watched == before + 1
    del view
    gc.collect()
    assert fault_handler().watched == before


@pytest.mark.parametrize("allocations", range(20))
def test_memory_may_die_while_faults_are_sorted(guard, table, allocations):
    """Garbage is collected at any allocation: also at those of the walk over what is watched."""
    many = [guard.allocate("lives", (1, 1), torch.int32) for _ in range(30)]
    with PageGuard() as other:
        cycle = [other.allocate("dies", (1, 1), torch.int32)]
        cycle.append(cycle)
    with guard.window():
        table[1].sum()
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        del other, cycle
        gc.set_threshold(gc.get_count()[0] + allocations)
        gc.enable()
        guard.look()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert len(pages(guard.faults)) == SHAPE[0] * SHAPE[1] * 4 // PAGE
    assert many


# ---- the signal ----------------------------------------------------------------------------------


def action():
    """The address of the process's handler of SIGSEGV."""
    words = (ctypes.c_uint64 * 4)()
    ctypes.CDLL(None).syscall(13, 11, None, words, 8)
    return words[0]


def test_the_signal_is_given_back_also_after_an_exception():
    before, guard = action(), PageGuard()
    _, reader = guard.allocate("table", SHAPE, torch.int32)

    def fail():
        assert action() != before
        guard.window().close()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), guard:
        fail()
    assert action() == before
    assert reader.sum() == 0
    assert not guard.stolen


def test_guards_nest_and_each_sees_its_own(guard, table):
    within = action()
    with PageGuard() as inner:
        _, reader = inner.allocate("table", SHAPE, torch.int32)
        with guard.window(), inner.window():
            table[1][3].clone()
            reader[4].clone()
    assert action() == within
    assert pages(inner.faults) == [4]
    assert pages(guard.faults) == [3]
    with guard.window():
        table[1][5].clone()
    assert pages(guard.faults) == [3, 5]


def test_many_threads_touch_and_none_is_missed(guard, table):
    window = guard.window()
    start = threading.Barrier(5)

    def touch(first):
        start.wait()
        for row in range(first, 64, 4):
            table[1].numpy()[row].sum()

    threads = [threading.Thread(target=touch, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    window.close()
    start.wait()
    for thread in threads:
        thread.join()
    assert pages(window.open()) == list(range(64))
    assert guard.lost == 0


def test_more_faults_than_are_kept_are_counted(guard):
    rows = 5000
    _, reader = guard.allocate("large", (rows, 1024), torch.int32)
    before = guard.count
    with guard.window():
        reader[:, 0].sum()
    assert guard.count - before == rows
    assert len(guard.faults) + guard.lost == rows


# ---- whose work it was ---------------------------------------------------------------------------


@pytest.fixture(params=["inline", "threads", "seeded:3"])
def device(request, guard):
    with host_device(request.param) as device:
        device.memory = guard.allocate
        with device.watched_by(guard.whereabouts):
            yield device


def test_a_fault_knows_the_stream_and_the_phase(guard, device):
    _, reader = device.shared_memory("req_to_token", SHAPE, torch.int32)
    forward, schedule = device.stream("forward"), device.stream("schedule")

    def late():
        device.phase("body")
        reader[3].clone()

    with guard.window("forward"):
        forward.submit(late).result()
        schedule.submit(reader[4].clone).result()
        reader[5].clone()
    assert [(pages([f]), f.stream, f.phase) for f in guard.faults] == [
        ([3], "forward", "body"),
        ([4], "schedule", ""),
        ([5], "", ""),
    ]


def test_a_replay_is_seen(guard, device):
    _, reader = device.shared_memory("req_to_token", SHAPE, torch.int32)
    forward, graph = device.stream("forward"), device.graph()
    rows = torch.tensor([3, 40])

    def body():
        return (reader.index_select(0, rows) * 2 + 1).sum()

    forward.submit(graph.capture, body).result()
    assert not guard.look()
    with guard.window("forward"):
        forward.submit(graph.replay).result()
    assert pages(guard.faults) == [3, 40]
    assert {fault.stream for fault in guard.faults} == {"forward"}


def test_a_buffer_whose_tensor_was_moved_says_so(guard, table):
    table[1].set_(torch.zeros(4, dtype=torch.int32).untyped_storage())
    gc.collect()
    with pytest.raises(WarcoreError, match="req_to_token lies in its guarded pages no longer"):
        guard.window().close()
