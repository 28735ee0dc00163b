"""A replayed step has the bits of an eager one, and its attention runs eagerly each time."""

from __future__ import annotations

import random

import attrs
import pytest
import torch
from stand import CONTEXT, Comparison, Stand, check_text, lengths_of
from toys import LAYERS

import warcore_backend_torch_native.backend
from warcore import ForwardMode, GraphKind, WiringError
from warcore_backend_torch_native import TorchNative
from warcore_graph_runner_breakable import Breakable
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


def buckets_of(mode, sizes=(2, 4)):
    """Steps of `mode` captured at `sizes` requests, or tokens of one request for EXTEND."""
    width = WIDTH if mode in {VERIFY, DRAFT_EXTEND} else 1
    shapes = [(1, n) if mode is EXTEND else (n, n * width) for n in sizes]
    return [b for shape in reversed(shapes) for b in lengths_of(TorchNative, mode, *shape)]


# ---- the bits of an eager step -------------------------------------------------------------------


@pytest.mark.parametrize("longest", [4, 8, 9, 16, 17, 33, CONTEXT])
@pytest.mark.parametrize("mode", [DECODE, VERIFY, DRAFT_EXTEND], ids=lambda mode: mode.name)
def test_steps_at_every_boundary(mode, longest):
    comparison = Comparison(TorchNative, Breakable, buckets_of(mode), tree=mode is VERIFY)
    for size in (1, 2, 3, 4, 5):
        lens = [1] * size if mode is DECODE else [1 + (size + i) % WIDTH for i in range(size)]
        prefixes = [(longest - n) >> i for i, n in enumerate(lens)]
        width = WIDTH if mode is VERIFY else None
        batch = comparison.eager.batch(mode, lens, prefixes, seed=size, width=width)
        comparison.check(batch, replayed=size <= 4)


@pytest.mark.parametrize("prefix", [0, 1, 8, 23, 40])
def test_prefills_of_one_request_at_every_boundary(prefix):
    comparison = Comparison(TorchNative, Breakable, buckets_of(EXTEND, sizes=(4, 8, 16)))
    for tokens in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17):
        batch = comparison.eager.batch(EXTEND, [tokens], [prefix], seed=tokens)
        comparison.check(batch, replayed=2 <= tokens <= 16)


@pytest.mark.parametrize("seed", range(8))
def test_buckets_replayed_in_any_order_keep_their_own_metadata(seed):
    draw = random.Random(seed)
    buckets = [
        *buckets_of(DRAFT_EXTEND, sizes=(4,)),
        *buckets_of(VERIFY),
        *buckets_of(DECODE, sizes=(1, 2, 4)),
        *buckets_of(EXTEND, sizes=(4, 8)),
    ]
    comparison = Comparison(TorchNative, Breakable, buckets, tree=True)
    for step in range(25):
        mode = draw.choice([DECODE, VERIFY, DRAFT_EXTEND, EXTEND])
        # Now and then too many for any bucket: eager steps come in between.
        size = 1 if mode is EXTEND else draw.randint(1, 5)
        most = {DECODE: 1, EXTEND: 8}.get(mode, WIDTH)
        lens = [draw.randint(1 + (mode is EXTEND), most) for _ in range(size)]
        prefixes = [draw.randint(0, CONTEXT - most) for _ in lens]
        width = WIDTH if mode is VERIFY else None
        batch = comparison.eager.batch(mode, lens, prefixes, seed=step, width=width)
        comparison.check(batch, replayed=size <= 4)


@pytest.mark.parametrize("mode", [DECODE, VERIFY, DRAFT_EXTEND, EXTEND], ids=lambda m: m.name)
def test_no_live_token_depends_on_what_padding_reads(mode):
    lens = {DECODE: [1, 1, 1], VERIFY: [3, 2, 3], DRAFT_EXTEND: [1, 3, 2], EXTEND: [6]}[mode]
    outputs = []
    for poison in (0.0, 1e30, float("nan")):
        buckets = buckets_of(mode, sizes=(8,) if mode is EXTEND else (4,))
        stand = Stand(TorchNative, Breakable, buckets, tree=True)
        stand.poison(poison)
        width = WIDTH if mode is VERIFY else None
        outputs.append(stand.run(stand.batch(mode, lens, [9, 2, 20][: len(lens)], width=width)))
        assert stand.replays == 1
    assert outputs[0].isfinite().all()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


# ---- attention runs eagerly ----------------------------------------------------------------------


class Watched(TorchNative):
    """Notes what each attention call is shown, and what else of it is called."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.seen = []

    def init_forward_metadata_in_graph(self, batch):
        self.seen.append("in_graph")
        super().init_forward_metadata_in_graph(batch)

    def forward(self, q, k, v, layer, batch):
        self.seen.append((layer.index, batch.size, batch.extend_lens, batch.max_seq_len))
        return super().forward(q, k, v, layer, batch)


@pytest.mark.parametrize(
    ("mode", "sizes", "lens", "facts"),
    [
        (DECODE, (4,), [1, 1, 1], (3, (), 16)),
        (DRAFT_EXTEND, (4,), [2, 1], (2, (), 16)),
        (EXTEND, (8,), [5], (1, (5,), 16)),
    ],
)
def test_each_replay_calls_the_attention_with_the_host_facts_of_its_own_step(
    mode, sizes, lens, facts
):
    stand = Stand(Watched, Breakable, buckets_of(mode, sizes))
    stand.backend.seen.clear()
    stand.run(stand.batch(mode, lens, [10] * len(lens)))
    assert stand.replays == 1
    assert stand.backend.seen == [(layer.index, *facts) for layer in LAYERS]


class Measuring(TorchNative):
    """Its attention asks the device for a number."""

    def forward(self, q, k, v, layer, batch):
        self.longest = batch.seq_lens.max().item()
        return super().forward(q, k, v, layer, batch)


def test_an_attention_that_cannot_be_captured_replays_with_breaks():
    buckets = buckets_of(DECODE)
    with pytest.raises(WiringError, match="cannot be captured"):
        Stand(Measuring, Full, buckets)
    stand, eager = Stand(Measuring, Breakable, buckets), Stand(Measuring)
    for prefix in (3, 12):
        batch = stand.batch(DECODE, [1, 1], [prefix, 1])
        torch.testing.assert_close(stand.run(batch), eager.run(batch), rtol=1e-11, atol=1e-11)
        assert stand.backend.longest == prefix + 1
    assert stand.replays == 2


def test_an_attention_that_fails_in_a_replay_spoils_no_later_one():
    class Failing(TorchNative):
        fails = False

        def forward(self, q, k, v, layer, batch):
            if Failing.fails:
                raise LookupError("no kernel")
            return super().forward(q, k, v, layer, batch)

    stand, eager = Stand(Failing, Breakable, buckets_of(DECODE)), Stand(TorchNative)
    batch = stand.batch(DECODE, [1, 1], [7, 3])
    Failing.fails = True
    with pytest.raises(LookupError, match="no kernel"):
        stand.run(batch)
    Failing.fails = False
    torch.testing.assert_close(stand.run(batch), eager.run(batch), rtol=1e-11, atol=1e-11)


def test_what_it_says_of_itself():
    assert Breakable.kind is GraphKind.BREAKABLE
    assert Breakable.modes == frozenset(ForwardMode) - {ForwardMode.MIXED}
    assert Breakable.default_rank < Full.default_rank
    assert Breakable.why_not(attrs.evolve(Stand(TorchNative).spec, tree=True)) == []


@pytest.mark.parametrize("device", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_model_writes_the_text_of_eager_steps(device):
    check_text("breakable", device)
