"""Huge pages: which memory is asked for, and that asking changes nothing but where it lies."""

from __future__ import annotations

import pytest
import torch

from warcore_model_llama import huge_pages
from warcore_model_llama.huge_pages import GAP, HUGE, back_by_huge_pages, whole_pages
from warcore_model_llama.linear import gated_projection, projection


@pytest.mark.parametrize(
    ("spans", "pages"),
    [
        ([], []),
        ([(HUGE, HUGE - 1)], []),
        ([(HUGE, HUGE)], [(HUGE, HUGE)]),
        ([(HUGE + 1, 2 * HUGE)], [(2 * HUGE, HUGE)]),
        # Neighbours in any order, and a pair that is too far apart.
        ([(2 * HUGE - 8, HUGE), (HUGE, HUGE - 64)], [(HUGE, HUGE)]),
        ([(HUGE, HUGE // 2), (HUGE + HUGE // 2 + GAP, HUGE // 2)], []),
    ],
)
def test_only_whole_pages_within_the_weights_are_asked_for(spans, pages):
    assert whole_pages(spans) == pages


def test_contents_and_addresses_stay():
    weight = torch.arange(3 * HUGE // 8, dtype=torch.int64)
    address, before = weight.data_ptr(), weight.clone()
    back_by_huge_pages([(address, weight.nbytes)])
    assert weight.data_ptr() == address
    assert torch.equal(weight, before)


def test_nothing_happens_where_the_kernel_is_told_never(tmp_path, monkeypatch):
    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "SETTING", setting)
    back_by_huge_pages(iter(lambda: pytest.fail("the spans were looked at"), None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_of_a_matrix_says_where_it_lies(dtype):
    one, other = torch.randn(64, 32, dtype=dtype), torch.randn(64, 32, dtype=dtype)
    for matrix, count in ((projection(one), 1), (gated_projection(one, other), 2)):
        spans = matrix.spans()
        assert all(address for address, _ in spans)
        assert sum(size for _, size in spans) >= count * one.nbytes
