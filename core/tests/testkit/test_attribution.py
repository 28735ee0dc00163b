"""What attribution sees on one thread: the rows of a table, and what each touch is called."""

from __future__ import annotations

import copy
import ctypes
import inspect
import pickle
import threading

import numpy as np
import pytest
import torch

from warcore.testkit.detectors.attribution import Attribution

HERE = __file__
ROWS, COLS = 6, 8
ROW = COLS * 4
"""Bytes of a row."""


@torch.library.custom_op("warcore_tests::looks_at_the_shape", mutates_args=())
def looks_at_the_shape(table: torch.Tensor) -> torch.Tensor:
    return torch.zeros(table.shape[0])


@torch.library.custom_op("warcore_tests::reads_a_row", mutates_args=())
def reads_a_row(table: torch.Tensor) -> torch.Tensor:
    return table[2] + 1


@torch.library.custom_op("warcore_tests::reads_by_pointer", mutates_args=())
def reads_by_pointer(table: torch.Tensor) -> torch.Tensor:
    first = ctypes.c_int32.from_address(table.data_ptr()).value
    return torch.tensor(first)


@torch.library.custom_op("warcore_tests::reads_in_python", mutates_args=())
def reads_in_python(table: torch.Tensor) -> torch.Tensor:
    return torch.tensor(table.tolist()[0][0])


@torch.library.custom_op("warcore_tests::writes_a_row", mutates_args={"table"})
def writes_a_row(table: torch.Tensor) -> None:
    table[1].fill_(7)


@torch.library.custom_op("warcore_tests::index", mutates_args=())
def index(table: torch.Tensor) -> torch.Tensor:
    """Its name is that of an operation of torch, its arguments are not."""
    return table[2] + 1


custom = torch.ops.warcore_tests


@pytest.fixture
def memory():
    """A tensor in the middle of which the watched table lies."""
    return torch.arange((ROWS + 4) * COLS, dtype=torch.int32).view(-1, COLS)


@pytest.fixture
def table(memory):
    """Rows 2 to 2 + ROWS of `memory`."""
    return memory[2 : 2 + ROWS]


def touched(table, work, *args):
    """What `work` touches: (kind, operation, first byte, one past the last)."""
    with Attribution({"table": table}) as seen:
        work(*args or (table,))
    return [(a.kind, a.operation, a.start, a.stop) for a in seen.accesses]


def ints(*values):
    return torch.tensor(values)


ALL = 0, ROWS * ROW
READS = {
    "index_select on a view": (lambda t: t[1:].index_select(0, ints(0, 2)), "index_select", 1, 4),
    "T[idx]": (lambda t: t[ints(1, 3)], "index", 1, 4),
    "T[idx] from the end": (lambda t: t[ints(-1)], "index", 5, 6),
    "T[:, idx]": (lambda t: t[:, ints(0)], "index", 0, 5.125),
    "T[i, j]": (lambda t: t[ints(1, 2), ints(0, 0)], "index", 1, 2.125),
    "T[mask]": (lambda t: t[t.new_ones(ROWS, dtype=torch.bool)], "index", 0, 6),
    "gather": (lambda t: t.gather(0, torch.full((1, COLS), 4)), "gather", 4, 5),
    "take": (lambda t: t.take(ints(COLS)), "take", 1, 1.125),
    "a slice": (lambda t: t[2] + 1, "add", 2, 3),
    "a part of a row": (lambda t: t[2, 4:] + 1, "add", 2.5, 3),
    "a view chain": (lambda t: t.view(-1).unsqueeze(0)[:, COLS:].sum(), "sum", 1, 6),
    "clone": (lambda t: t.clone(), "clone", 0, 6),
    "another dtype": (lambda t: t.to(torch.int64), "_to_copy", 0, 6),
    "copy_ from it": (lambda t: torch.zeros_like(t).copy_(t), "copy_", 0, 6),
    "cat of a list": (lambda t: torch.cat([t[:1], t[:1]]), "cat", 0, 1),
    "item": (lambda t: t[3, 0].item(), "item", 3, 3.125),
    "int": (lambda t: int(t[3, 0]), "item", 3, 3.125),
    "a dlpack alias": (lambda t: torch.from_dlpack(np.from_dlpack(t[1])) + 1, "add", 1, 2),
    "deepcopy": (lambda t: copy.deepcopy(t[1:2]), "copy_", 0, 6),
    "another storage": (lambda t: torch.frombuffer(t.numpy(), dtype=t.dtype) + 1, "add", 0, 6),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_is_seen_with_its_operation_and_its_bytes(name, table):
    work, operation, first, last = READS[name]
    seen = [each for each in touched(table, work) if each[1].startswith("aten.")]
    assert seen == [("read", f"aten.{operation}", first * ROW, last * ROW)]


WRITES = {
    "copy_": (lambda t: t[1].copy_(torch.zeros(COLS)), "copy_", 1, 2),
    "fill_": (lambda t: t[1].fill_(3), "fill_", 1, 2),
    "T[i] = number": (lambda t: t.__setitem__(1, 3), "fill_", 1, 2),
    "T[idx] = rows": (lambda t: t.__setitem__(ints(1, 2), 0), "index_put_", 1, 3),
    "index_copy_": (
        lambda t: t.index_copy_(0, ints(5), torch.zeros(1, COLS).int()),
        "index_copy_",
        5,
        6,
    ),
    "scatter_": (lambda t: t.scatter_(1, ints(*[3] * ROWS)[:, None], 0), "scatter_", 0.375, 5.5),
    "add(out=)": (lambda t: torch.add(ints(*range(COLS)).int(), 1, out=t[0]), "add", 0, 1),
    "masked_fill_": (lambda t: t.masked_fill_(torch.ones(ROWS, 1).bool(), 1), "masked_fill_", 0, 6),
    "random_": (lambda t: t.random_(9), "random_", 0, 6),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_overwrite_is_a_write_and_no_read(name, table):
    work, operation, first, last = WRITES[name]
    assert touched(table, work) == [("write", f"aten.{operation}", first * ROW, last * ROW)]


CHANGES = {
    "add_": (lambda t: t[1].add_(1), "add_"),
    "index_put_ that adds": (
        lambda t: t.index_put_((ints(1),), ints(1).int(), accumulate=True),
        "index_put_",
    ),
    "index_add_": (lambda t: t.index_add_(0, ints(1), torch.ones(1, COLS).int()), "index_add_"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_place_is_a_read_and_a_write(name, table):
    work, operation = CHANGES[name]
    seen = [(kind, f"aten.{operation}", ROW, 2 * ROW) for kind in ("read", "write")]
    assert touched(table, work) == seen


NOTHING = {
    "a view chain": lambda t: t[1:].view(-1).unsqueeze(0).expand(4, -1).t(),
    "a dtype that it has": lambda t: t.to(torch.int32).contiguous().reshape(-1),
    "shapes": lambda t: (t.size(0), t.numel(), t.stride(), t.dtype, len(t)),
    "empty_like": lambda t: (torch.empty_like(t), t.new_zeros(3), torch.zeros_like(t)),
    "its shape for others": lambda t: (ints(1).expand_as(t), ints(1).type_as(t)),
    "its shape, broadcast": lambda t: torch.broadcast_tensors(t, t[:1]),
    "no elements": lambda t: t[:0] + 1,
    "no rows": lambda t: t[ints()[:0].long()],
    "turning a view in place": lambda t: t[:].t_(),
    "a list of rows": list,
    "a custom op that only looks at the shape": custom.looks_at_the_shape,
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", NOTHING)
def test_what_looks_at_no_element_is_no_access(name, mode, table):
    with mode():
        assert touched(table, NOTHING[name]) == []


BESIDE = {
    "rows before": lambda m: m[:2] + 1,
    "rows behind": lambda m: m[2 + ROWS :].clone(),
    "an index of other rows": lambda m: m[ints(0, 9)],
    "index_select of other rows": lambda m: m.index_select(0, ints(1)),
    "an embedding of other rows": lambda m: torch.embedding(m, ints(1, 9)),
    "a write to other rows": lambda m: m.index_put_((ints(0, 9),), ints(3).int()),
    "gather of other rows": lambda m: m.gather(0, torch.full((1, COLS), 9)),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_lies_beside_the_buffer_in_one_storage_is_no_access(name, memory, table):
    assert touched(table, BESIDE[name], memory) == []


def test_a_column_is_not_its_neighbour(memory):
    column = memory[:, 3]
    assert touched(column, lambda _: memory[:, 4] + 1) == []
    assert touched(column, lambda _: memory[:, :3].clone()) == []
    assert touched(column, lambda _: memory[4] + 1) == [("read", "aten.add", 4 * ROW, 4 * ROW + 4)]


PYTHON = {
    "tolist": lambda t: t[1].tolist(),
    "numpy": lambda t: t[1].numpy(),
    "__array__": lambda t: np.asarray(t[1]),
    "__dlpack__": lambda t: np.from_dlpack(t[1]),
    "__repr__": lambda t: repr(t[1]),
    "__format__": lambda t: f"{t[1]}",
}


@pytest.mark.parametrize("name", PYTHON)
def test_values_that_go_to_python_without_an_aten_call_are_reads(name, table):
    assert touched(table, PYTHON[name]) == [("read", f"Tensor.{name}", ROW, 2 * ROW)]


ADDRESSES = {
    "data_ptr": lambda t: t[1].data_ptr(),
    "untyped_storage": lambda t: t[1].untyped_storage(),
    "numpy": lambda t: memoryview(t[1].numpy()),
    "__array__": lambda t: np.asarray(t[1]),
    "__dlpack__": lambda t: np.from_dlpack(t[1]),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_an_address_given_away_is_told(name, table):
    with Attribution({"table": table}) as seen:
        ADDRESSES[name](table)
    (taken,) = seen.addresses_taken
    assert (taken.buffer, taken.operation) == ("table", f"Tensor.{name}")
    assert taken.place.file == HERE
    assert name.strip("_") in taken.place.text or "np." in taken.place.text
    assert "takes the address of table" in str(taken)


def test_pickling_gives_the_address_away(table):
    with Attribution({"table": table}) as seen:
        pickle.dumps(table)
    assert {each.operation for each in seen.addresses_taken} == {"Tensor.untyped_storage"}


def test_a_custom_op_is_named_by_what_its_python_kernel_does(table):
    assert touched(table, custom.reads_a_row) == [("read", "aten.add", 2 * ROW, 3 * ROW)]
    assert touched(table, custom.index) == [("read", "aten.add", 2 * ROW, 3 * ROW)]
    assert touched(table, custom.writes_a_row) == [("write", "aten.fill_", ROW, 2 * ROW)]
    assert touched(table, custom.reads_in_python)[0] == ("read", "Tensor.tolist", *ALL)


def test_a_custom_op_that_takes_the_address_counts_by_its_schema(table):
    assert touched(table, custom.reads_by_pointer) == [
        ("read", "warcore_tests.reads_by_pointer", *ALL)
    ]


def test_a_custom_op_without_a_python_kernel_counts_by_its_schema(table):
    """As the C kernel of a wheel would: here torch's own, under another name."""
    library = torch.library.Library("warcore_tests_c", "DEF")
    library.define("total(Tensor x) -> Tensor")
    library.impl("total", torch.sum, "Meta")
    with Attribution({"table": table}) as seen, pytest.raises(NotImplementedError):
        torch.ops.warcore_tests_c.total(table)
    assert [a.operation for a in seen.accesses] == ["warcore_tests_c.total"]


def test_an_operation_of_a_higher_order_is_seen_whole(table):
    cond = torch.ops.higher_order.cond
    seen = touched(
        table,
        lambda t: cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (t,)),
    )
    assert {(kind, operation) for kind, operation, *_ in seen} >= {("read", "cond")}


def test_a_call_that_fails_counts_as_a_touch(table):
    def work(t):
        with pytest.raises(RuntimeError):
            t @ torch.ones(3, 3)

    assert [kind for kind, *_ in touched(table, work)] == ["read"]


def test_the_place_is_the_line_of_somebody_and_not_of_torch(table):
    with Attribution({"table": table}) as seen:
        torch.nn.functional.one_hot(table.long()[0] % 8)  # the line
    (access,) = seen.accesses
    assert access.place.file == HERE
    assert access.place.text.endswith("# the line")
    assert access.place.line == inspect.currentframe().f_lineno - 4
    assert access.seen_by == {"attribution"}


def test_touches_of_one_line_are_one_access_with_a_count_and_a_union(table):
    with Attribution({"table": table}) as seen:
        for row in range(1, 4):
            table[row] + 1
        table[5] + 1
    assert [(a.start // ROW, a.stop // ROW, a.count) for a in seen.accesses] == [
        (1, 4, 3),
        (5, 6, 1),
    ]


def test_a_call_that_takes_the_buffer_twice_counts_once(table):
    with Attribution({"table": table}) as seen:
        table[0] + table[3]
    assert [(a.start // ROW, a.stop // ROW, a.count) for a in seen.accesses] == [(0, 4, 1)]


def test_several_buffers_are_told_apart_in_the_order_of_their_touches(table):
    other = torch.zeros(4)
    with Attribution({"other": other, "table": table}) as seen:
        table.sum()
        other.add_(table[0, :4])
    assert [(a.buffer, a.kind) for a in seen.accesses] == [
        ("table", "read"),
        ("other", "read"),
        ("other", "write"),
        ("table", "read"),
    ]


def test_a_buffer_may_be_seen_at_several_addresses(table):
    mapped = table.clone()
    with Attribution({"table": [table, mapped]}) as seen:
        mapped[1] + 1
    assert [(a.buffer, a.start) for a in seen.accesses] == [("table", ROW)]


def test_the_host_tells_its_phases_itself(table):
    with Attribution({"table": table}) as seen:
        table.sum()
        seen.phase(None, "after read_done")
        table.sum()
    assert [(a.stream, a.phase) for a in seen.accesses] == [("", ""), ("", "after read_done")]


def test_nothing_is_seen_before_or_behind_and_entering_may_nest(table):
    attribution = Attribution({"table": table})
    table.sum()
    with attribution, attribution:
        pass
    table.tolist()
    assert attribution.accesses == []
    with attribution:
        with attribution:
            pass
        table.sum()
    assert len(attribution.accesses) == 1


def test_a_thread_is_watched_where_it_enters(table):
    attribution = Attribution({"table": table})

    def entering():
        with attribution:
            table.max()

    with attribution:
        for work in (table.sum, entering):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert [a.operation for a in attribution.accesses] == ["aten.max"]


def test_two_attributions_see_the_same(table):
    with Attribution({"one": table}) as one, Attribution({"two": table}) as two:
        custom.reads_a_row(table)
        table.tolist()
    names = ["aten.add", "Tensor.tolist"]
    assert [a.operation for a in one.accesses] == [a.operation for a in two.accesses] == names
    assert {a.count for a in (*one.accesses, *two.accesses)} == {1}


def test_what_has_no_memory_of_its_own_is_passed_over(table):
    sparse = torch.eye(3).to_sparse()
    assert touched(table, lambda _: sparse.sum()) == []


@pytest.mark.slow
def test_a_compiled_function_is_seen_as_its_eager_calls(table):
    compiled = torch.compile(lambda t: t[1] * 2, backend="eager")
    assert touched(table, compiled) == [("read", "aten.mul", ROW, 2 * ROW)]
