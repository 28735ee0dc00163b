"""observe: a step of anybody's engine, its tensors, and what touches them after a mark."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from warcore.errors import WarcoreError
from warcore.testkit import Observation, mark, observe, observing
from warcore.testkit.detectors import moving
from warcore.testkit.detectors.faults import fault_handler
from warcore.testkit.detectors.guard import supported

PAGE = Path(__file__).parents[3] / "docs/authors/observe.md"
guarded = pytest.mark.skipif(supported() is not None, reason=str(supported()))

ROWS, COLS = 64, 1024
ROW = COLS * 4
PICKED = torch.tensor([3, 40])


@pytest.fixture
def table():
    return torch.arange(ROWS * COLS, dtype=torch.int32).view(ROWS, COLS)


def late(step, **shared):
    return [(a.buffer, a.kind, a.operation) for a in observe(step, shared).after]


# ---- before and after ----------------------------------------------------------------------------


def test_a_read_before_the_mark_is_before_it_and_one_after_it_is_late_with_its_line(table):
    def step():
        copy = table[PICKED]
        mark("read_done")
        copy.sum()
        return table.index_select(0, PICKED)  # the late one

    found = observe(step, {"req_to_token": table})
    assert [a.operation for a in found.before] == ["aten.index"]
    (access,) = found.after
    assert (access.operation, access.kind, access.phase) == (
        "aten.index_select",
        "read",
        "read_done",
    )
    assert (access.start, access.stop) == (3 * ROW, 41 * ROW)
    assert access.place.file == __file__
    assert access.place.text.endswith("# the late one")
    assert found.result.shape == (2, COLS)


def test_an_observation_is_the_sequence_of_all_accesses_and_reads_well(table):
    def step():
        table.sum()
        mark("read_done")
        table.prod()

    found = observe(step, {"req_to_token": table})
    assert isinstance(found, Observation)
    assert [a.operation for a in found] == ["aten.sum", "aten.prod"]
    assert (len(found), found[:1]) == (2, found.before)
    assert "req_to_token was read after 'read_done'" in str(found)
    assert f"at {__file__}" in str(found)


def test_without_a_mark_everything_is_before_it_and_that_is_said(table):
    found = observe(table.sum, {"req_to_token": table})
    assert (len(found.before), found.after, found.marks) == (1, (), ())
    assert "no mark() was passed" in " ".join(found.missing)
    assert "touched late" not in str(found)


def test_a_clean_step_says_that_nothing_was_touched_late(table):
    def step():
        copy = table.clone()
        mark("read_done")
        return copy.sum()

    found = observe(step, {"req_to_token": table})
    assert (found.after, found.missing) == ((), ())
    assert str(found).startswith("nothing was touched late")


def test_the_last_mark_gives_its_name_and_a_mark_within_a_call_counts(table):
    def layer():
        table[5].sum()
        mark("layer")

    def step():
        mark("metadata")
        layer()
        table[6].sum()

    found = observe(step, {"req_to_token": table})
    assert [a.phase for a in found.after] == ["metadata", "layer"]
    assert found.marks == ("metadata", "layer")


def test_where_the_next_step_begins_reads_are_welcome_again(table):
    def step():
        for row in (1, 2):
            mark("launch", late=False)
            table[row].sum()
            mark("read_done")
        table[3].prod()

    found = observe(step, {"req_to_token": table})
    assert [a.operation for a in found.after] == ["aten.prod"]
    assert [(a.phase, a.count) for a in found.before] == [("launch", 2)]


def test_a_mark_where_nobody_observes_does_nothing():
    mark("read_done")


@guarded
def test_a_mark_passed_on_another_thread_counts_for_all(table):
    def step():
        thread = threading.Thread(target=mark, args=("read_done",))
        thread.start()
        thread.join()
        return table.sum()

    assert late(step, req_to_token=table) == [("req_to_token", "read", "aten.sum")]


# ---- what the guard adds -------------------------------------------------------------------------


@guarded
def test_both_detectors_see_the_same_touch_in_one_run(table):
    runs = []

    def step():
        runs.append(1)
        mark("read_done")
        table.tolist()
        table[7].add_(1)

    found = observe(step, {"req_to_token": table})
    assert [(a.operation, a.kind) for a in found.after] == [
        ("Tensor.tolist", "read"),
        ("aten.add_", "read"),
        ("aten.add_", "write"),
    ]
    assert {a.seen_by for a in found.after} == {frozenset({"guard", "attribution"})}
    assert len(runs) == 1


@guarded
def test_what_a_call_could_touch_and_does_not_is_no_access(table):
    def step():
        mark("read_done")
        table.numpy()
        torch.where(torch.zeros(0, dtype=torch.bool), table[:0, 0], 0)
        return table.index_select(0, torch.tensor([], dtype=torch.int64))

    assert observe(step, {"req_to_token": table}).after == ()


@guarded
def test_a_read_by_an_address_has_the_library_and_says_where_the_address_was_taken(table):
    def step():
        address = table.data_ptr()
        mark("read_done")
        ctypes.string_at(address + 9 * ROW, 8)

    found = observe(step, {"req_to_token": table})
    (access,) = found.after
    assert (access.start, access.kind, access.place) == (9 * ROW, "read", None)
    assert access.seen_by == {"guard"}
    assert access.operation
    assert "Tensor.data_ptr takes the address of req_to_token at" in str(found)


@guarded
def test_how_far_a_touch_went_that_the_guard_alone_saw_is_not_said(table):
    def step():
        address = table.data_ptr()
        mark("read_done")
        ctypes.string_at(address + 9 * ROW, 8)

    assert f"after 'read_done': from byte {9 * ROW} on by" in str(observe(step, {"table": table}))


def test_what_lies_between_two_touches_of_a_line_was_not_touched(table):
    def step(rows):
        mark("read_done")
        for row in rows:
            table[row].sum()

    found = observe(lambda: step([1, 3, 2, 9]), {"table": table}).after
    assert [(a.start // ROW, a.stop // ROW, a.count) for a in found] == [(1, 4, 3), (9, 10, 1)]
    *_, rest = observe(lambda: step(range(1, 30, 2)), {"table": table}).after
    assert (rest.start // ROW, rest.stop // ROW, rest.count) == (7, 30, 12)


def test_a_report_says_what_stays_out_of_sight(table):
    array = table.numpy()

    def step():
        mark("read_done")
        return int(array[3, 0])

    found = observe(step, {"table": table})
    assert (found.after, found.missing) == ((), ()) or supported()
    assert "out of sight: " in str(found)
    assert "by an address" in str(found)


@guarded
def test_a_write_through_an_array_made_earlier_in_the_step_is_a_write(table):
    def step():
        array = table.numpy()
        mark("read_done")
        array[4] = 7

    found = observe(step, {"req_to_token": table})
    assert [a.kind for a in found.after] == ["write"]
    assert table[4].unique().tolist() == [7]


@guarded
def test_another_threads_read_is_seen_and_bears_its_name(table):
    done, seen = threading.Event(), threading.Event()

    def work():
        table[11].clone()
        done.set()
        seen.wait()

    def step():
        mark("read_done")
        thread = threading.Thread(target=work, name="reader")
        thread.start()
        done.wait()
        mark("joined")
        seen.set()
        thread.join()

    (access,) = observe(step, {"req_to_token": table}).after
    assert (access.stream, access.phase) == ("reader", "read_done")
    assert access.start // 4096 == 11


@guarded
def test_a_second_touch_of_a_page_is_seen_too(table):
    def step():
        mark("read_done")
        table[3].sum()
        table[3].prod()

    assert [op for *_, op in late(step, req_to_token=table)] == ["aten.sum", "aten.prod"]


@guarded
def test_a_system_call_that_fails_on_closed_memory_is_explained(table):
    def step():
        mark("read_done")
        read, write = os.pipe()
        try:
            os.write(write, memoryview(table.numpy()).cast("B")[:64])
        finally:
            os.close(read)
            os.close(write)

    with pytest.raises(OSError) as caught:
        observe(step, {"req_to_token": table})
    assert "system call" in " ".join(caught.value.observation.missing)


# ---- whose tensors -------------------------------------------------------------------------------

DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16]


@guarded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_and_a_tensor_that_shares_its_page_with_others(dtype):
    lens = torch.ones(5, dtype=dtype)

    def step():
        mark("read_done")
        return lens.clone()

    found = observe(step, {"seq_lens": lens})
    (access,) = found.after
    assert access.seen_by == {"guard", "attribution"}
    assert torch.equal(found.result, lens)


@guarded
def test_several_tensors_each_under_its_name(table):
    lens = torch.tensor([4, 5], dtype=torch.int64)
    empty = torch.empty(0, dtype=torch.int32)

    def step():
        mark("read_done")
        empty.sum()
        return table[lens]

    names = [(a.buffer, a.operation) for a in observe(step, shared_of(table, lens, empty)).after]
    assert sorted(names) == [("req_to_token", "aten.index"), ("seq_lens", "aten.index")]


def shared_of(table, lens, empty):
    return {"req_to_token": table, "seq_lens": lens, "nothing": empty}


@guarded
def test_two_tensors_of_one_storage_are_told_apart(table):
    def step():
        mark("read_done")
        return table[40].sum()

    assert late(step, low=table[:32], high=table[32:]) == [("high", "read", "aten.sum")]


@guarded
def test_only_the_elements_of_a_strided_tensor_count(table):
    def step():
        mark("read_done")
        table[:, 512].sum()
        table[:, 3].prod()

    assert late(step, head=table[:, :8]) == [("head", "read", "aten.prod")]


@guarded
def test_a_view_made_earlier_is_guarded_too_and_nothing_has_moved_afterwards(table):
    view, address = table[2:].view(-1, 2), table.data_ptr()

    def step():
        view[0] = 99
        mark("read_done")
        return view.sum()

    assert [op for *_, op in late(step, req_to_token=table)] == ["aten.sum"]
    assert (table.data_ptr(), view.data_ptr()) == (address, address + 2 * ROW)
    assert table[2, :2].tolist() == [99, 99]


def observed_while_its_address_is_taken():
    """The array that the step made of its table, and all else is gone."""
    table = torch.arange(ROWS * COLS).view(ROWS, COLS)

    def step():
        mark("read_done")
        return table.numpy()

    return observe(step, {"req_to_token": table}).result


@guarded
def test_an_array_made_in_the_step_outlives_it_and_its_memory_goes_with_it():
    gc.collect()
    before = fault_handler().watched
    array = observed_while_its_address_is_taken()
    gc.collect()
    assert array[3, 0] == 3 * COLS
    del array
    gc.collect()
    assert fault_handler().watched == before


@guarded
def test_a_write_through_an_array_made_earlier_than_the_step_is_said_to_be_lost(table):
    array = table.numpy()

    def step():
        array[0, 0] = 5
        mark("read_done")

    found = observe(step, {"req_to_token": table})
    assert "written through an address taken before" in " ".join(found.missing)


@guarded
def test_a_tensor_over_an_array_moves_and_comes_back():
    array = np.arange(6)
    tensor = torch.from_numpy(array)

    def step():
        tensor.add_(1)
        mark("read_done")

    assert observe(step, {"lens": tensor}).missing == ()
    assert array.tolist() == [1, 2, 3, 4, 5, 6]


@guarded
def test_a_storage_that_the_step_gives_other_memory_is_left_alone_and_named(table):
    def step():
        table.resize_(ROWS * 2, COLS)
        mark("read_done")

    found = observe(step, {"req_to_token": table})
    assert "other memory" in " ".join(found.missing)
    assert table[3, 0] == 3 * COLS


def test_tensors_of_inference_mode_and_with_gradients(table):
    with torch.inference_mode():
        lens = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)

    def step():
        mark("read_done")
        return lens.sum() + weight.sum()

    assert {a.buffer for a in observe(step, {"lens": lens, "weight": weight}).after} == {
        "lens",
        "weight",
    }


def test_a_tensor_without_memory_is_refused():
    with pytest.raises(WarcoreError, match="'nowhere' has no memory"):
        observe(lambda: None, {"nowhere": torch.empty(3, device="meta")})


@pytest.mark.parametrize(
    ("shared", "message"),
    [({}, "there is nothing to observe"), ({"lens": [3]}, "'lens' is a list, and no tensor")],
)
def test_what_is_no_tensor_is_refused_and_so_is_nothing(shared, message):
    with pytest.raises(WarcoreError, match=message):
        observe(lambda: mark("read_done"), shared)


@pytest.mark.parametrize(
    ("step", "shared", "message"),
    [
        (None, {"lens": torch.ones(3)}, "the step is None, which cannot be called"),
        (lambda: None, [torch.ones(3)], "`shared` is a list, and gives tensors no names"),
    ],
)
def test_what_is_no_step_or_no_mapping_is_refused_with_how_to_call_it(step, shared, message):
    with pytest.raises(WarcoreError, match=message) as caught:
        observe(step, shared)
    assert "observe(step, {" in caught.value.next


# ---- a step that goes wrong ----------------------------------------------------------------------


def test_an_error_of_the_step_bears_what_was_seen_and_all_is_put_back(table):
    address = table.data_ptr()

    def step():
        mark("read_done")
        table.sum()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        observe(step, {"req_to_token": table})
    assert [a.operation for a in caught.value.observation.after] == ["aten.sum"]
    assert table.data_ptr() == address
    assert observe(table.sum, {"req_to_token": table}).after == ()


def test_one_observation_at_a_time(table):
    def step():
        observe(lambda: None, {"req_to_token": table})

    with pytest.raises(WarcoreError, match="observed already"):
        observe(step, {"req_to_token": table})


def test_without_a_guard_attribution_alone_tells_and_the_reason_is_said(table, monkeypatch):
    monkeypatch.setattr(observing, "supported", lambda: "no pages here")

    def step():
        mark("read_done")
        return table.sum()

    found = observe(step, {"req_to_token": table})
    assert [a.seen_by for a in found.after] == [frozenset({"attribution"})]
    assert found.detectors == ("attribution",)
    assert "no pages here" in " ".join(found.missing)


@guarded
def test_a_torch_whose_storages_cannot_be_moved_leaves_the_tensor_where_it_is(table, monkeypatch):
    monkeypatch.setattr(moving, "_WORDS", 0)

    def step():
        mark("read_done")
        return table.sum()

    found = observe(step, {"req_to_token": table})
    assert [a.seen_by for a in found.after] == [frozenset({"attribution"})]
    assert "req_to_token stays where it is" in " ".join(found.missing)


# ---- steps that can be run again -----------------------------------------------------------------


def test_overwriting_at_the_mark_shows_what_the_result_depends_on(table):
    lens = torch.tensor([3, 5])

    def step():
        rows = table[lens]
        mark("read_done")
        return rows.sum() + table[1, 2]

    found = observe(step, {"req_to_token": table, "seq_lens": lens}, rerun=True)
    (access,) = found.after
    assert access.buffer == "req_to_token"
    assert "poison" in access.seen_by
    assert "poison" in found.detectors
    assert table[1, 2] == COLS + 2


def test_poison_sees_what_no_other_detector_can(table, monkeypatch):
    monkeypatch.setattr(observing, "supported", lambda: "no pages here")

    def step():
        address = table.data_ptr()
        mark("read_done")
        return int.from_bytes(ctypes.string_at(address + 8, 4), "little")

    (access,) = observe(step, {"req_to_token": table}, rerun=True).after
    assert (access.buffer, access.seen_by, access.phase) == (
        "req_to_token",
        {"poison"},
        "read_done",
    )


def test_each_run_begins_with_the_same_contents_and_the_first_runs_stay(table):
    def step():
        table[0, 0] += 1
        rows = table.clone()
        mark("read_done")
        return rows

    found = observe(step, {"req_to_token": table}, rerun=True)
    assert (found.after, found.missing) == ((), ())
    assert table[0, 0] == 1


def test_poison_gives_way_where_the_next_step_begins_but_not_to_what_was_written_since(table):
    def step():
        sums = []
        for row in (1, 2):
            mark("launch", late=False)
            sums.append(table[row].sum())
            mark("read_done")
            table[2] = 7
        return sums

    found = observe(step, {"req_to_token": table}, rerun=True)
    assert {a.kind for a in found.after} == {"write"}
    assert not any("poison" in a.seen_by for a in found.after)


def test_a_step_that_gives_another_result_each_time_cannot_be_judged_by_poison(table):
    count = iter(range(100))

    def step():
        mark("read_done")
        return table[next(count), 0]

    found = observe(step, {"req_to_token": table}, rerun=True)
    assert "cannot be rerun" in " ".join(found.missing)
    assert "poison" not in found.detectors


def test_a_step_without_a_result_and_a_tensor_of_one_value_are_named(table):
    found = observe(lambda: mark("read_done"), {"req_to_token": table}, rerun=True)
    assert "no tensor and no number" in " ".join(found.missing)
    ones = torch.ones(4)

    def step():
        mark("read_done")
        return ones.sum()

    assert "one value only" in " ".join(observe(step, {"ones": ones}, rerun=True).missing)


# ---- the rest ------------------------------------------------------------------------------------


def test_marks_cost_an_engine_no_import_of_torch():
    program = "import sys; from warcore.testkit import mark; mark('a'); "
    program += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_kernel_of_the_page_says_in_the_interpreter_what_the_page_says(tmp_path):
    pytest.importorskip("triton")
    shown = re.findall(
        r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    program, expected = shown[-2:]
    (tmp_path / "kernel.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "kernel.py"],
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        text=True,
        capture_output=True,
        check=True,
    )
    pattern = ".*?".join(map(re.escape, expected.strip().split("...")))
    assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), done.stdout
