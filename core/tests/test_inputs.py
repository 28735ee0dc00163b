"""The memory that a captured step reads its batch from: all of it is this step's, in one place."""

from __future__ import annotations

import itertools
import random

import attrs
import pytest
import torch

from warcore import Bucket, ForwardBatch, ForwardMode
from warcore.device.host import HostDevice
from warcore.inputs import StaticInputs, blank
from warcore.statics import Statics

WIDTH = 3
MODES = [mode for mode in ForwardMode if mode is not ForwardMode.MIXED]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
TENSORS = [
    field.name for field in attrs.fields(ForwardBatch) if str(field.type).startswith("torch.Tensor")
]


def bucket_of(mode, rows, width=WIDTH):
    return Bucket(mode, rows, rows if mode is ForwardMode.DECODE else rows * width, 32)


BUCKETS = [bucket_of(mode, rows) for mode in MODES for rows in (1, 2, 4)]


class Inputs:
    """Static inputs for all of BUCKETS, and where they lie."""

    def __init__(self, buckets=BUCKETS, *, tree=True):
        self.device = HostDevice("inline")
        self.memory = {}
        statics = Statics(self.device, self.device.stream("forward"))

        def static(name, shape, dtype):
            return self.memory.setdefault(name, statics.static(name, shape, dtype))

        self.inputs = StaticInputs(buckets, static, tree=tree)
        self.load = self.inputs.load


def tensors(batch):
    return {name: getattr(batch, name) for name in TENSORS}


def addresses(batch):
    return {name: None if t is None else t.data_ptr() for name, t in tensors(batch).items()}


def live(mode, lens, seed=0):
    """A batch of requests with `lens` new tokens, in which no number is one of the padding's."""
    draw = random.Random(seed)
    size, count = len(lens), sum(lens)
    prefixes = [draw.randint(2, 20) for _ in lens]
    starts = list(itertools.accumulate(lens, initial=0))
    mask = None
    if mode is ForwardMode.TARGET_VERIFY:
        mask = torch.tensor([draw.choices([True, False], k=WIDTH) for _ in range(count)])
    return ForwardBatch(
        mode=mode,
        size=size,
        padded_size=size,
        padded_tokens=count,
        tokens=torch.tensor([draw.randint(1, 60) for _ in range(count)]),
        rows=torch.tensor(draw.sample(range(1, 9), size)),
        seq_lens=torch.tensor([p + n for p, n in zip(prefixes, lens, strict=True)]).int(),
        q_start=torch.tensor(starts).int(),
        q_row=torch.tensor([row for row, n in enumerate(lens) for _ in range(n)]),
        positions=torch.tensor(
            [p + i for p, n in zip(prefixes, lens, strict=True) for i in range(n)]
        ),
        out_slots=torch.tensor([draw.randint(4, 60) for _ in range(count)]),
        max_seq_len=max(p + n for p, n in zip(prefixes, lens, strict=True)),
        max_q_len=max(lens),
        extend_lens=tuple(lens) if mode.is_prefill else (),
        logits_at=torch.tensor(starts[1:]) - 1 if mode.is_prefill else None,
        tree_mask=mask,
    )


def lens_of(mode, size, draw):
    if mode is ForwardMode.DECODE:
        return [1] * size
    return [draw.randint(1, WIDTH) for _ in range(size)]


def padded(values, count, fill):
    return [*values.tolist(), *[fill] * (count - len(values))]


def expected(batch, bucket):
    """What every element of the view must be, as lists."""
    rows, tokens = bucket.rows, bucket.tokens
    decode = bucket.mode is ForwardMode.DECODE
    none = [False] * WIDTH
    return {
        "tokens": padded(batch.tokens, tokens, 0),
        "rows": padded(batch.rows, rows, 0),
        "seq_lens": padded(batch.seq_lens, rows, 1),
        "q_start": list(range(rows + 1))
        if decode
        else padded(batch.q_start, rows + 1, batch.padded_tokens),
        "q_row": list(range(rows)) if decode else padded(batch.q_row, tokens, rows - 1),
        "positions": padded(batch.positions, tokens, 0),
        "out_slots": padded(batch.out_slots, tokens, 0),
        "logits_at": padded(batch.logits_at, rows, 0) if bucket.mode.is_prefill else None,
        "tree_mask": padded(batch.tree_mask, tokens, none)
        if bucket.mode is ForwardMode.TARGET_VERIFY
        else None,
        "ahead": None,
    }


def listed(view):
    return {name: None if t is None else t.tolist() for name, t in tensors(view).items()}


# ---- what a view shows ---------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_padding_points_at_row_0_and_slot_0_and_lies_beyond_the_end(mode, size):
    bucket = bucket_of(mode, 4)
    batch = live(mode, lens_of(mode, size, random.Random(size)))
    assert listed(Inputs().load(batch, bucket)) == expected(batch, bucket)


@each_mode
def test_a_view_has_the_shapes_of_its_bucket_and_the_host_facts_of_its_batch(mode):
    bucket, batch = bucket_of(mode, 4), live(mode, [1, 1])
    view = Inputs().load(batch, bucket)
    assert (view.padded_size, view.padded_tokens) == (bucket.rows, bucket.tokens)
    assert (view.mode, view.bucket, view.max_seq_len) == (mode, bucket, bucket.max_seq_len)
    assert (view.size, view.extend_lens) == (2, batch.extend_lens)
    most = {ForwardMode.DECODE: 1, ForwardMode.EXTEND: bucket.tokens}.get(mode, WIDTH)
    assert view.max_q_len == bucket.max_q_len == most
    for name, tensor in tensors(batch).items():
        if tensor is not None:
            assert getattr(view, name).dtype == tensor.dtype, name


@pytest.mark.parametrize("lens", [[1, 1], [2, 1], [3, 3]], ids=str)
def test_a_bucket_holds_no_batch_with_more_tokens_of_one_request_than_it_captured(lens):
    bucket = Bucket(ForwardMode.DRAFT_EXTEND, 4, 8, 64)
    assert bucket.holds(live(ForwardMode.DRAFT_EXTEND, lens)) == (max(lens) <= 2)


@each_mode
def test_a_batch_whose_maker_does_not_bound_the_tokens_of_a_request_is_bounded_by_its_shape(mode):
    batch = live(mode, [1, 1])
    names = [field.name for field in attrs.fields(ForwardBatch) if field.name != "max_q_len"]
    silent = ForwardBatch(**{name: getattr(batch, name) for name in names})
    assert silent.max_q_len == (1 if mode is ForwardMode.DECODE else 2)


@each_mode
def test_query_lengths_at_replay_may_differ_from_those_at_capture(mode):
    bucket, inputs = bucket_of(mode, 4), Inputs()
    inputs.load(blank(bucket, torch.device("cpu")), bucket)
    lens = [1, 1, 1] if mode is ForwardMode.DECODE else [1, 3, 2]
    batch = live(mode, lens)
    assert listed(inputs.load(batch, bucket)) == expected(batch, bucket)


# ---- nothing of an earlier step ------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_smaller_batch_after_a_larger_one_sees_nothing_of_it(mode, size):
    bucket, inputs = bucket_of(mode, 4), Inputs()
    inputs.load(live(mode, [1 if mode is ForwardMode.DECODE else WIDTH] * 4, seed=1), bucket)
    batch = live(mode, [1] * size, seed=2)
    assert listed(inputs.load(batch, bucket)) == expected(batch, bucket)


@pytest.mark.parametrize("seed", range(40))
def test_steps_of_all_kinds_in_any_order_see_nothing_of_one_another(seed):
    draw, inputs = random.Random(seed), Inputs()
    for step in range(30):
        bucket = draw.choice(BUCKETS)
        lens = lens_of(bucket.mode, draw.randint(1, bucket.rows), draw)
        batch = live(bucket.mode, lens, seed=step)
        assert listed(inputs.load(batch, bucket)) == expected(batch, bucket)


@pytest.mark.parametrize("dirt", [0, 1, 63])
def test_whatever_the_memory_held_is_overwritten(dirt):
    inputs, kept = Inputs(), {"inputs.each_start", "inputs.each_row"}
    for bucket in BUCKETS:
        batch = live(bucket.mode, [1])
        inputs.load(batch, bucket)
        for name, memory in inputs.memory.items():
            if name not in kept:
                memory.fill_(dirt)
        assert listed(inputs.load(batch, bucket)) == expected(batch, bucket)


def test_trees_of_several_widths_have_masks_of_their_own():
    buckets = [
        bucket_of(ForwardMode.TARGET_VERIFY, rows, width) for rows in (2, 3) for width in (2, 4)
    ]
    inputs = Inputs(buckets)
    for bucket in buckets:
        width = bucket.tokens // bucket.rows
        batch = attrs.evolve(
            live(ForwardMode.TARGET_VERIFY, [width]),
            tree_mask=torch.ones(width, width, dtype=torch.bool),
        )
        view = inputs.load(batch, bucket)
        assert view.tree_mask.shape == (bucket.tokens, width)
        assert view.tree_mask[:width].all()
        assert not view.tree_mask[width:].any()


def test_without_trees_a_view_has_no_mask():
    bucket = bucket_of(ForwardMode.TARGET_VERIFY, 2)
    batch = attrs.evolve(live(ForwardMode.TARGET_VERIFY, [2]), tree_mask=None)
    assert Inputs(tree=False).load(batch, bucket).tree_mask is None


# ---- one address for life ------------------------------------------------------------------------


@each_mode
def test_no_load_moves_anything(mode):
    inputs = Inputs()
    places = {}
    draw = random.Random(0)
    for step in range(20):
        for bucket in BUCKETS:
            if bucket.mode is not mode:
                continue
            lens = lens_of(mode, draw.randint(1, bucket.rows), draw)
            now = addresses(inputs.load(live(mode, lens, seed=step), bucket))
            assert places.setdefault(bucket, now) == now


def test_all_buckets_share_one_set_of_buffers():
    inputs = Inputs()
    assert inputs.memory["inputs.tokens"].shape == (4 * WIDTH,)
    assert inputs.memory["inputs.rows"].shape == (4,)
    for bucket in BUCKETS:
        view = inputs.load(live(bucket.mode, [1]), bucket)
        assert view.tokens.data_ptr() == inputs.memory["inputs.tokens"].data_ptr()


# ---- what a capture sees -------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 7), (3, 3), (3, 8), (4, 12)])
def test_a_blank_batch_is_padding_rows_only_that_share_the_tokens(mode, rows, tokens):
    tokens = rows if mode is ForwardMode.DECODE else tokens
    batch = blank(Bucket(mode, rows, tokens, 16), torch.device("cpu"))
    assert (batch.padded_size, batch.padded_tokens) == (rows, tokens)
    for nothing in batch.rows, batch.out_slots, batch.tokens:
        assert not nothing.any()
    lens = batch.q_start.diff()
    assert lens.sum() == tokens
    assert lens.max() - lens.min() <= 1
    assert batch.seq_lens.tolist() == lens.tolist()
    assert batch.q_row.tolist() == [row for row, n in enumerate(lens.tolist()) for _ in range(n)]
    assert batch.positions.tolist() == [i for n in lens.tolist() for i in range(n)]
    assert (batch.logits_at is not None) == mode.is_prefill
