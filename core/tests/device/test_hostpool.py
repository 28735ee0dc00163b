"""The memory of host graphs: what is let go of serves again, what is held is left alone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from warcore.device.host import HostDevice
from warcore.device.hostpool import Geometry, HostPool, geometry


@pytest.fixture
def inline():
    with HostDevice("inline") as device:
        yield device


def form(count, dtype=torch.float32):
    return Geometry(dtype, (count,), (1,))


def capture(device, pool, fn):
    stream, graph = device.stream("forward"), device.graph(pool)
    return stream.submit(graph.capture, fn).result(), lambda: stream.submit(graph.replay).result()


def test_a_chunk_serves_again_when_the_last_view_of_it_dies():
    pool = HostPool()
    tensor = pool.place(form(16))
    address = tensor.data_ptr()
    view = tensor.view(4, 4)[1:]
    del tensor
    other = pool.place(form(16))
    assert other.data_ptr() != address
    del view
    assert pool.place(form(16)).data_ptr() == address


def test_an_alias_sees_the_same_memory_and_does_not_hold_it():
    pool = HostPool()
    tensor = pool.place(form(16)).fill_(3)
    address = tensor.data_ptr()
    alias = pool.alias(tensor.view(2, 8).t()[3:])
    assert alias.tolist() == [[3, 3]] * 5
    del tensor
    assert pool.place(form(16)).data_ptr() == address


def test_what_is_not_of_the_pool_has_no_alias():
    tensor = torch.ones(3)
    assert HostPool().alias(tensor) is tensor


def test_the_smallest_chunk_that_holds_a_result_is_taken():
    pool = HostPool()
    large, small = pool.place(form(1000)), pool.place(form(100))
    address = small.data_ptr()
    del large, small
    assert pool.place(form(90)).data_ptr() == address


def test_memory_is_aligned_as_torch_aligns_it():
    pool = HostPool()
    held = [pool.place(form(count, torch.bfloat16)) for count in (1, 3, 33, 100)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in held)


def test_a_result_outlives_its_pool():
    pool = HostPool()
    tensor = pool.place(form(1000)).fill_(7)
    del pool
    gc.collect()
    torch.empty(1000).fill_(1)
    assert tensor.eq(7).all()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty_strided((4, 4), (8, 1)),
        torch.ones(1).expand(4),
        torch.ones(8)[2:],
        torch.ones(3).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.ones(3)),
    ],
    ids=["gaps", "overlap", "offset", "sparse", "lazy", "subclass"],
)
def test_what_does_not_fill_its_memory_from_the_start_has_no_geometry(tensor):
    assert geometry(tensor) is None


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)], ids=str)
def test_a_placed_tensor_lies_as_it_was_asked_to(shape):
    wanted = torch.empty(shape, dtype=torch.int16).transpose(0, -1) if shape else torch.empty(())
    lies = geometry(wanted)
    placed = HostPool().place(lies)
    assert (placed.shape, placed.stride(), placed.dtype) == (
        wanted.shape,
        wanted.stride(),
        wanted.dtype,
    )


def test_a_capture_is_bounded_by_what_is_alive_at_a_time_not_by_its_length(inline):
    pool, x = inline.graph_pool(), torch.ones(1000)

    def body():
        y = x + 1
        for _ in range(50):
            y = y * 2 - 1
        return y

    capture(inline, pool, body)
    assert pool.nbytes <= 4 * 4096


def test_a_graph_holds_none_of_the_results_that_were_let_go_of(inline):
    seen = []

    def body():
        y = torch.ones(3) + 1
        seen.append(weakref.ref(y))
        return y * 2

    capture(inline, inline.graph_pool(), body)
    assert seen[0]() is None


def test_a_result_with_gaps_keeps_its_own_memory_which_is_counted(inline):
    pool, x = inline.graph_pool(), torch.ones(4, 4)
    output, replay = capture(inline, pool, lambda: torch.empty_strided((4, 4), (8, 1)).copy_(x))
    assert pool.nbytes >= 28 * 4
    x.fill_(5)
    replay()
    assert output.eq(5).all()


def test_graphs_of_one_pool_replay_in_any_order(inline):
    pool, x = inline.graph_pool(), torch.ones(100)
    fns = [lambda by=by: (x * by + 1).sum() * by for by in (2, 3, 4)]
    cases = [(*capture(inline, pool, fn), fn) for fn in fns]
    for value, order in enumerate(([0, 1, 2], [2, 0, 1], [1, 1, 0])):
        x.fill_(value)
        for index in order:
            output, replay, fn = cases[index]
            replay()
            assert torch.equal(output, fn())


def test_a_failed_capture_gives_its_memory_back(inline):
    pool, x = inline.graph_pool(), torch.ones(1000)

    def fails():
        y = x * 2
        raise LookupError(y.shape)

    with pytest.raises(LookupError):
        capture(inline, pool, fails)
    gc.collect()
    before = pool.nbytes
    capture(inline, pool, lambda: x * 3)
    assert pool.nbytes == before == 4032
