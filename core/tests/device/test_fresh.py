"""What a hook makes anew each time must not be read where it is refused."""

from __future__ import annotations

import pytest
import torch

from warcore.device.fresh import FreshMemory
from warcore.errors import DeviceError

TABLE = torch.arange(6.0)


class Backend:
    """Leaves a new tensor, a view of it, and what it wrote in place."""

    def __init__(self):
        self.kept = torch.zeros(3)

    def hook(self):
        self.anew = TABLE[:3] * 2
        self.part = self.anew[1:]
        self.kept.copy_(self.anew)


@pytest.fixture
def backend():
    return Backend()


@pytest.fixture
def fresh(backend):
    return FreshMemory(backend.hook, "hook")


@pytest.mark.parametrize("name", ["anew", "part"])
def test_reading_it_is_refused_with_operation_line_and_remedy(backend, fresh, name):
    with fresh.refused(), pytest.raises(DeviceError) as raised:
        getattr(backend, name).sum()
    assert "aten.sum" in raised.value.what
    assert "a tensor that hook makes anew each time" in raised.value.what
    assert f"{__file__}:" in raised.value.what
    assert "getattr(backend, name).sum()" in raised.value.what
    assert "ctx.static" in raised.value.next


def test_what_it_wrote_in_place_and_what_it_only_read_may_be_read(backend, fresh):
    with fresh.refused():
        assert backend.kept.tolist() == [0, 2, 4]
        assert TABLE.sum() == 15


def test_what_is_no_part_of_the_graph_may_read_it(backend, fresh):
    with fresh.refused():
        with fresh.allowed():
            assert backend.anew.sum() == 6
        with pytest.raises(DeviceError):
            backend.anew.sum()


def test_a_tensor_of_later_is_never_taken_for_one_of_them(backend, fresh):
    backend.anew = backend.part = None
    with fresh.refused():
        for _ in range(50):
            assert torch.ones(3).sum() == 3


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without mkldnn")
def test_packed_weights_have_no_memory_to_look_at(fresh):
    packed = torch.ones(2, 2).to_mkldnn()
    with fresh.refused():
        assert packed.to_dense().sum() == 4


def test_memory_that_a_tensor_is_only_laid_over_is_not_new():
    laid = []

    def hook():
        # As Triton's interpreter does it with each argument of a kernel.
        laid.append(torch.empty(0).set_(TABLE.untyped_storage(), 0, TABLE.shape, TABLE.stride()))

    fresh = FreshMemory(hook, "hook")
    with fresh.refused():
        assert laid[0].sum() == 15
        for _ in range(50):
            assert torch.ones(3).sum() == 3
