"""`warcore.testkit.context`: what a backend is built from, without an engine."""

from __future__ import annotations

import attrs
import pytest
import torch

from warcore import AttentionBackend, AttentionSpec, GraphKind, NoOptions, PluginError, TensorSpec
from warcore.errors import ConfigError
from warcore.testkit import context

SPEC = AttentionSpec(
    q_heads=2,
    kv_heads=1,
    head_dim=8,
    dtype=torch.float32,
    kv_dtype=torch.float32,
    page_size=4,
    max_context=30,
    windows=frozenset({None}),
    tree=False,
    device=torch.device("cpu"),
    role="target",
)


@attrs.frozen
class Sizes:
    tile: int = 32


class Packed(AttentionBackend):
    Options = Sizes

    @classmethod
    def kv_cache(cls, spec):
        return {"kv": TensorSpec((2, spec.page_size, spec.head_dim), torch.float32)}

    def forward(self, q, k, v, layer, batch):
        raise AssertionError


def test_every_position_of_every_request_has_a_slot_of_its_own():
    table = context(SPEC, max_batch=3).shared.req_to_token
    assert table.dtype == torch.int32
    assert table.shape == (4, 32), "a row is whole pages wide"
    assert table[1:].unique().numel() == 3 * 32
    assert (table[1:] >= SPEC.page_size).all(), "page 0 is the padding's"
    assert not table[0].any()


def test_the_slots_of_a_page_follow_one_another_and_its_pages_do_not():
    pages = context(SPEC).shared.req_to_token[1:].view(-1, SPEC.page_size)
    assert (pages.diff(dim=1) == 1).all()
    assert (pages[:, 0].diff() != SPEC.page_size).any()


def test_each_slot_of_the_table_lies_in_the_cache_and_holds_nothing_yet():
    ctx = context(SPEC, layers=2)
    assert len(ctx.kv) == 2
    for layer in ctx.kv:
        keys = layer["k"].flatten(0, 1)
        assert keys[ctx.shared.req_to_token[1:].long()].isnan().all()
        assert not keys[0].any(), "the padding's slot holds numbers"


def test_the_cache_is_the_one_that_the_class_asks_for():
    (layer,) = context(SPEC, Packed).kv
    assert layer["kv"].shape[1:] == (2, 4, 8)


def test_options_are_those_of_the_class_unless_some_are_given():
    assert context(SPEC).options == NoOptions()
    assert context(SPEC, Packed).options == Sizes()
    assert context(SPEC, Packed, options=Sizes(64)).options == Sizes(64)


def test_static_memory_keeps_its_address_and_takes_what_is_staged():
    ctx = context(SPEC)
    lengths = ctx.static("lengths", (4,), torch.int32)
    assert ctx.static("lengths", (4,), torch.int32) is lengths
    ctx.stage("lengths", [3, 1])
    assert lengths.tolist() == [3, 1, 0, 0]
    with pytest.raises(PluginError, match="take it with"):
        ctx.stage("nobody", [1])


def test_a_test_may_write_the_shared_table_as_a_scheduler_would():
    table = context(SPEC).shared.req_to_token
    table[1].fill_(7)
    assert table[1].unique().tolist() == [7]


def test_bounds_and_graph_are_what_was_asked_for():
    ctx = context(SPEC, max_batch=2, graph=GraphKind.UNBROKEN)
    assert (ctx.max_batch, ctx.max_tokens, ctx.graph) == (2, 60, GraphKind.UNBROKEN)


@pytest.mark.parametrize("size", ["max_batch", "layers"])
def test_there_is_no_context_for_nobody(size):
    with pytest.raises(ConfigError, match=f"{size}=0"):
        context(SPEC, **{size: 0})
