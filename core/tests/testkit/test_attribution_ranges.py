"""Bytes of strided tensors, against counting them one by one."""

from __future__ import annotations

import random

import pytest
import torch

from warcore.testkit.detectors import ranges
from warcore.testkit.detectors.picking import PICKS
from warcore.testkit.detectors.ranges import Overlap, Watched, runs_of


def random_view(draw, memory):
    """A view of `memory` with random sizes, strides and offset."""
    shape = [draw.randrange(1, 4) for _ in range(draw.randrange(1, 4))]
    stride = [draw.randrange(12) for _ in shape]
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return memory.as_strided(shape, stride, draw.randrange(memory.numel() - last))


def bytes_of(tensor):
    """Every byte, from each element's own address."""
    size = tensor.element_size()
    flat = [tensor.data_ptr()]
    for count, stride in zip(tensor.shape, tensor.stride(), strict=True):
        flat = [a + i * stride * size for a in flat for i in range(count)]
    return {byte for address in flat for byte in range(address, address + size)}


@pytest.mark.parametrize("seed", range(100))
def test_runs_are_the_bytes_of_the_elements(seed):
    view = random_view(random.Random(seed), torch.zeros(128, dtype=torch.int16))
    runs = runs_of(view)
    assert {byte for start, stop in runs for byte in range(start, stop)} == bytes_of(view)
    assert runs == sorted(runs)


@pytest.mark.parametrize("seed", range(200))
def test_an_overlap_reaches_from_the_first_to_the_last_shared_byte(seed):
    draw, memory = random.Random(seed), torch.zeros(128, dtype=torch.int16)
    buffer, view = random_view(draw, memory), random_view(draw, memory)
    shared = bytes_of(buffer) & bytes_of(view)
    start = buffer.data_ptr()
    expected = (Overlap("b", min(shared) - start, max(shared) + 1 - start),) if shared else ()
    assert Watched({"b": buffer}).touched(view) == expected


def test_a_tensor_in_too_many_pieces_counts_from_its_first_to_its_last_byte(monkeypatch):
    monkeypatch.setattr(ranges, "MAX_RUNS", 3)
    view = torch.zeros(4, 8, dtype=torch.uint8)[:, :2]
    assert runs_of(view) == [(view.data_ptr(), view.data_ptr() + 26)]


def test_no_elements_are_no_bytes():
    assert runs_of(torch.zeros(3, 0)) == []
    assert Watched({"b": torch.zeros(0)}).touched(torch.zeros(3)) == ()


def test_what_is_known_of_addresses_is_bounded(monkeypatch):
    monkeypatch.setattr(ranges, "_MAX_KNOWN", 4)
    table = torch.zeros(64)
    watched = Watched({"b": table})
    for row in range(64):
        assert watched.touched(table[row]) == (Overlap("b", 4 * row, 4 * row + 4),)
    assert len(watched._known) <= 4


def elements(tensor):
    """A tensor like it of the address of each element."""
    index = torch.arange(tensor.numel()).view(tensor.shape)
    return tensor.data_ptr() + index * tensor.element_size()


PICKING = {
    "index_select": {"dim": -1, "index": torch.tensor([2, 0])},
    "embedding": {"indices": torch.tensor([[1], [3]])},
    "index": {"indices": [torch.tensor([3, -1]), torch.tensor([0, 2])]},
    "gather": {"dim": 1, "index": torch.tensor([[0, 1], [2, 0]])},
    "take": {"index": torch.tensor([-1, 5])},
}


@pytest.mark.parametrize("name", PICKING)
def test_picks_are_where_the_call_itself_takes_its_elements_from(name):
    tensor, bound = torch.arange(12).view(4, 3), PICKING[name]
    subject = "weight" if name == "embedding" else "self"
    picked = PICKS[name]({subject: tensor, **bound})
    assert picked.argument == subject
    wanted = getattr(torch.ops.aten, name)(elements(tensor), *bound.values())
    begins = set(picked.addresses.tolist())
    assert begins <= set(wanted.flatten().tolist())
    assert min(begins) == wanted.min()
    assert max(begins) + picked.size == wanted.max() + tensor.element_size()


@pytest.mark.parametrize(
    "index",
    [
        torch.zeros(4, dtype=torch.bool),
        torch.zeros(1 << 17, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64, device="meta"),
    ],
    ids=["mask", "large", "elsewhere"],
)
def test_an_index_that_is_not_looked_at_counts_as_all(index):
    tensor = torch.zeros(4, 3)
    assert PICKS["index"]({"self": tensor, "indices": [index]}) is None
