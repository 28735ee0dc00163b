"""A replayed step has the bits of an eager one, at every boundary of its buckets."""

from __future__ import annotations

import random

import attrs
import pytest
import torch
from stand import CONTEXT, ROWS, Comparison, Stand, check_text, lengths_of

import warcore_backend_torch_native.backend
from warcore import Bucket, ForwardMode, GraphKind
from warcore_backend_torch_native import TorchNative
from warcore_graph_runner_full import Full

DECODE, VERIFY = ForwardMode.DECODE, ForwardMode.TARGET_VERIFY
DRAFT_EXTEND, EXTEND = ForwardMode.DRAFT_EXTEND, ForwardMode.EXTEND
WIDTH = 3
"""Drafted tokens of a request, and the one before them."""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Length buckets from 8, so that the toy's context has several; one thread for tiny tensors."""
    monkeypatch.setattr(warcore_backend_torch_native.backend, "SMALLEST", 8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compared(mode, sizes=(2, 4), **more):
    """Steps of `mode` captured at `sizes` requests, or tokens of one request for EXTEND."""
    width = WIDTH if mode in {VERIFY, DRAFT_EXTEND} else 1
    shapes = [(1, n) if mode is EXTEND else (n, n * width) for n in sizes]
    buckets = [
        bucket for shape in reversed(shapes) for bucket in lengths_of(TorchNative, mode, *shape)
    ]
    return Comparison(TorchNative, Full, buckets, **more)


@pytest.mark.parametrize("longest", [2, 7, 8, 9, 16, 17, 33, CONTEXT])
def test_decodes_at_every_boundary(longest):
    comparison = compared(DECODE)
    for size in (1, 2, 3, 4, 5):
        prefixes = [(longest - 1) >> i for i in range(size)]
        batch = comparison.eager.batch(DECODE, [1] * size, prefixes, seed=size)
        comparison.check(batch, replayed=size <= 4)


@pytest.mark.parametrize("longest", [4, 8, 9, 16, 17, CONTEXT])
def test_verification_of_trees_at_every_boundary(longest):
    comparison = compared(VERIFY, tree=True)
    for size in (1, 2, 3, 4, 5):
        prefixes = [(longest - WIDTH) >> i for i in range(size)]
        batch = comparison.eager.batch(VERIFY, [WIDTH] * size, prefixes, seed=size, width=WIDTH)
        comparison.check(batch, replayed=size <= 4)


@pytest.mark.parametrize("longest", [4, 8, 9, 16, 17, CONTEXT])
def test_draft_extends_at_every_boundary_with_other_lengths_than_at_capture(longest):
    comparison = compared(DRAFT_EXTEND)
    for size in (1, 2, 3, 4, 5):
        lens = [1 + (size + i) % WIDTH for i in range(size)]
        prefixes = [max(longest - n, 0) >> i for i, n in enumerate(lens)]
        batch = comparison.eager.batch(DRAFT_EXTEND, lens, prefixes, seed=size)
        comparison.check(batch, replayed=size <= 4)


@pytest.mark.parametrize("prefix", [0, 1, 5, 8, 23, 40])
def test_prefills_of_one_request_at_every_boundary(prefix):
    comparison = compared(EXTEND, sizes=(4, 8, 16))
    for tokens in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17):
        batch = comparison.eager.batch(EXTEND, [tokens], [prefix], seed=tokens)
        comparison.check(batch, replayed=2 <= tokens <= 16)


def test_verified_trees_may_be_ragged():
    comparison = compared(VERIFY, tree=True)
    for lens in ([3, 1], [2, 2, 1], [1, 1, 1, 3], [3], [1, 2]):
        prefixes = [4 + 2 * i for i in range(len(lens))]
        batch = comparison.eager.batch(VERIFY, lens, prefixes, seed=len(lens), width=WIDTH)
        comparison.check(batch, replayed=True)


@pytest.mark.parametrize("seed", range(5))
def test_steps_of_all_kinds_may_follow_one_another_in_any_order(seed):
    draw = random.Random(seed)
    buckets = [
        *lengths_of(TorchNative, DRAFT_EXTEND, 4, 4 * WIDTH),
        *lengths_of(TorchNative, VERIFY, 4, 4 * WIDTH),
        *lengths_of(TorchNative, DECODE, 4, 4),
        *lengths_of(TorchNative, DECODE, 1, 1),
        *lengths_of(TorchNative, EXTEND, 1, 8),
    ]
    comparison = Comparison(TorchNative, Full, buckets, tree=True)
    for step in range(25):
        mode = draw.choice([DECODE, VERIFY, DRAFT_EXTEND, EXTEND])
        size = 1 if mode is EXTEND else draw.randint(1, 4)
        most = {DECODE: 1, EXTEND: 8}.get(mode, WIDTH)
        lens = [draw.randint(1 + 3 * (mode is EXTEND), most) for _ in range(size)]
        prefixes = [draw.randint(0, CONTEXT - most) for _ in lens]
        width = WIDTH if mode is VERIFY else None
        batch = comparison.eager.batch(mode, lens, prefixes, seed=step, width=width)
        comparison.check(batch, replayed=True)


@pytest.mark.parametrize("mode", [DECODE, VERIFY, DRAFT_EXTEND, EXTEND], ids=lambda m: m.name)
def test_no_live_token_depends_on_what_padding_reads(mode):
    lens = {DECODE: [1, 1, 1], VERIFY: [3, 2, 3], DRAFT_EXTEND: [1, 3, 2], EXTEND: [6]}[mode]
    outputs = []
    for poison in (0.0, 1e30, float("nan")):
        stand = compared(mode, sizes=(8,) if mode is EXTEND else (4,), tree=True).replaying
        stand.poison(poison)
        prefixes = [9, 2, 20][: len(lens)]
        batch = stand.batch(mode, lens, prefixes, width=WIDTH if mode is VERIFY else None)
        outputs.append(stand.run(batch))
        assert stand.replays == 1
        assert outputs[-1].isfinite().all()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_replay_calls_nothing_of_the_backend_but_its_out_graph_hook():
    called = []

    class Counting(TorchNative):
        def init_forward_metadata_out_graph(self, batch):
            called.append("out_graph")
            super().init_forward_metadata_out_graph(batch)

        def init_forward_metadata_in_graph(self, batch):
            called.append("in_graph")
            super().init_forward_metadata_in_graph(batch)

        def forward(self, q, k, v, layer, batch):
            called.append("forward")
            return super().forward(q, k, v, layer, batch)

    stand = Stand(Counting, Full, lengths_of(TorchNative, DECODE, 2, 2))
    called.clear()
    stand.run(stand.batch(DECODE, [1, 1], [3, 4]))
    assert called == ["out_graph"]


def test_its_output_stays_where_it_was_captured():
    stand = Stand(TorchNative, Full, [Bucket(DECODE, ROWS, ROWS, CONTEXT, CONTEXT)])

    def place(size):
        batch = stand.batch(DECODE, [1] * size, [40] * size)
        return stand.forward.submit(stand.runner.execute, batch).result().logits.data_ptr()

    assert len({place(size) for size in (1, 3, 6, 2)}) == 1


def test_what_it_says_of_itself():
    assert Full.kind is GraphKind.UNBROKEN
    assert Full.modes == frozenset(ForwardMode) - {ForwardMode.MIXED}
    assert Full.why_not(attrs.evolve(Stand(TorchNative).spec, tree=True)) == []


@pytest.mark.parametrize("device", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_model_writes_the_text_of_eager_steps(device):
    check_text("full", device)
