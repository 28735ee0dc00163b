"""The backend with each of its kernels against dense attention, request by request, in float64.

On a CPU the Triton kernels run in Triton's interpreter:

    TRITON_INTERPRET=1 pytest plugins/backends/trtllm_mha
"""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warcore import Bucket, ForwardMode, GraphKind, SharedReadEnds
from warcore_backend_trtllm_mha.providers import PROVIDERS
from warcore_backend_trtllm_mha.sight import seen

WHY_NOT = PROVIDERS["triton"].missing(torch.device("cpu"))
interpreted = pytest.mark.skipif(bool(WHY_NOT), reason=f"cannot run kernels on {WHY_NOT}")
KERNELS = pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=interpreted)])

EXTEND, MIXED, DECODE, TARGET_VERIFY, DRAFT_EXTEND = (
    ForwardMode.EXTEND,
    ForwardMode.MIXED,
    ForwardMode.DECODE,
    ForwardMode.TARGET_VERIFY,
    ForwardMode.DRAFT_EXTEND,
)
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
MODES = pytest.mark.parametrize(
    "mode", [EXTEND, MIXED, DECODE, TARGET_VERIFY, DRAFT_EXTEND], ids=lambda m: m.name
)
LATE = pytest.mark.parametrize("mode", [DECODE, TARGET_VERIFY, DRAFT_EXTEND], ids=lambda m: m.name)
"""Those whose tables a replay reads."""
BOTH = {"windows": (None, 9), "mapped": True}
"""Layers of both kinds, and both shared tables."""


# --- what it computes


@MODES
@pytest.mark.parametrize("ratio", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_ragged_batches_attend_to_their_own_past(paged, mode, ratio, head_dim, page_size):
    paged.ragged(mode, ratio=ratio, head_dim=head_dim, page_size=page_size).check()


@interpreted
@MODES
@pytest.mark.parametrize(
    ("ratio", "head_dim", "page_size"), [(3, 80, 16), (8, 128, 32), (1, 256, 64)]
)
def test_so_they_do_with_the_triton_kernels(paged, mode, ratio, head_dim, page_size):
    shape = {"ratio": ratio, "head_dim": head_dim, "page_size": page_size, "kv_heads": 1}
    paged.ragged(mode, **shape, kernels="triton").check()


@MODES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@KERNELS
def test_each_dtype_is_as_exact_as_it_can_be(paged, mode, dtype, kernels):
    if kernels == "triton" and (dtype is torch.float64 or mode is MIXED):
        pytest.skip("it sums in float32, and a mixed step is a prefill to it")
    paged.ragged(mode, ratio=3, dtype=dtype, kernels=kernels).check()


@MODES
@pytest.mark.parametrize("windows", [(None, 1, 20), (3, 1000)], ids=str)
@KERNELS
def test_layers_honour_their_own_windows(paged, mode, windows, kernels):
    paged.ragged(mode, windows=windows, kernels=kernels, kv_heads=1).check()


@MODES
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("windows", [(None, 20), (1,), (3, None, 20), (1000, None)], ids=str)
def test_layers_with_a_window_find_their_past_in_a_pool_of_their_own(
    paged, mode, page_size, windows
):
    paged.ragged(mode, page_size=page_size, windows=windows, mapped=True).check()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seed", range(4))
@KERNELS
def test_a_drafted_token_sees_its_ancestors_only(paged, seed, mapped, kernels):
    trees = {"prefixes": (1, 33, 16), "lens": (8, 8, 8), "tree": True, "drafts": 8}
    more = {"mapped": mapped, "windows": (None, 2, 4), "kernels": kernels, "kv_heads": 1}
    paged(TARGET_VERIFY, **trees, **more, seed=seed).check()


@KERNELS
def test_verified_blocks_may_be_ragged(paged, kernels):
    ragged = {"prefixes": (1, 33, 16), "lens": (2, 5, 1), "tree": True, "windows": (None, 2)}
    paged(TARGET_VERIFY, **ragged, pad_rows=1, pad_tokens=7, kernels=kernels).check()


@KERNELS
def test_a_chain_needs_no_tree_mask(paged, kernels):
    paged(TARGET_VERIFY, prefixes=(3, 20), lens=(5, 5), kernels=kernels).check()


@KERNELS
def test_a_request_without_new_tokens_disturbs_nobody(paged, kernels):
    given = {"windows": (None, 1), "mapped": True, "kernels": kernels}
    paged(EXTEND, prefixes=(3, 9, 20), lens=(4, 0, 2), **given).check()


# --- what it does not look at


@MODES
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seq_len", [0, 1])
def test_no_poison_of_padding_or_of_unowned_slots_reaches_a_live_token(
    paged, mode, seq_len, mapped
):
    paged.ragged(mode, padded=True, pad_seq_len=seq_len, mapped=mapped, windows=(None, 4)).check()


@interpreted
@MODES
@pytest.mark.parametrize("seq_len", [0, 1])
def test_nor_with_the_triton_kernels(paged, mode, seq_len):
    case = paged.ragged(mode, padded=True, pad_seq_len=seq_len, **BOTH, kernels="triton")
    case.check()


@MODES
@KERNELS
def test_padding_that_holds_numbers_comes_out_as_numbers(paged, mode, kernels):
    case = paged.ragged(mode, padded=True, pad_seq_len=0, kernels=kernels)
    case.poison.fill_(1)
    for new in case.new:
        for values in new.values():
            values.nan_to_num_(1.0)
    # A padding token may attend to the padding slot.
    for memory in case.kv:
        for values in memory.values():
            values[0] = 0
    assert case.run().isfinite().all()


@interpreted
@pytest.mark.parametrize("mode", [EXTEND, TARGET_VERIFY], ids=lambda m: m.name)
def test_what_a_later_token_brings_is_not_seen_by_an_earlier_one(paged, mode):
    # A drafted token beyond the end of a request may be computed from anything, and be NaN.
    case = paged(mode, prefixes=(5, 9), lens=(3, 3), kernels="triton")
    for values in case.new[0].values():
        values[2] = math.nan
    got, expected = case.run()[0], case.expected()[0]
    assert got[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert (got[others].double() - expected[others]).abs().max() < 1e-5


def test_a_token_that_sees_nothing_sees_nothing(paged):
    case = paged.ragged(TARGET_VERIFY)
    case.batch.tree_mask.fill_(False)
    assert not seen(case.batch, torch.arange(case.width), 1).any()
    assert case.run().isfinite().all()


# --- where its reads end


@MODES
@KERNELS
def test_after_its_declared_end_nothing_shared_matters(paged, mode, kernels):
    case = paged.ragged(mode, **BOTH, kernels=kernels)
    ends = case.backend.shared_read_ends(mode)
    assert ends is paged.ENDS[mode]
    with torch.inference_mode():
        case.backend.init_forward_metadata_out_graph(case.batch)
        if ends is SharedReadEnds.PRE_REPLAY:
            case.overwrite_shared()
        case.backend.init_forward_metadata_in_graph(case.batch)
        case.overwrite_shared()
        case.check(case.body())


@LATE
@KERNELS
def test_what_a_graph_would_replay_reads_nothing_of_the_out_graph_hook(paged, mode, kernels):
    case = paged.ragged(mode, **BOTH, kernels=kernels)
    with torch.inference_mode():
        case.backend.init_forward_metadata_in_graph(case.batch)
        case.check(case.body())


def test_the_snapshot_names_pages_of_its_own_request_only(paged):
    case = paged.ragged(EXTEND, page_size=16, windows=(20,), mapped=True)
    with torch.inference_mode():
        case.backend.init_forward_metadata_out_graph(case.batch)
    tables = case.backend._tables.of(case.batch)
    swa = case.shared.full_to_swa
    for row, (slots, prefix) in enumerate(zip(case.slots, case.prefixes, strict=True)):
        assert set(tables.pages[row].tolist()) <= set((slots // 16).tolist())
        kept = swa[slots[case.kept(prefix) :]] // 16
        assert set(tables.swa_pages[row].tolist()) <= set(kept.tolist())


# --- what a step costs


class Watch(TorchDispatchMode):
    """Refuses host syncs and remembers the largest tensor that an operation made."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in func.name()
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(made, torch.Tensor):
                self.largest = max(self.largest, made.numel())
        return out


@MODES
@KERNELS
def test_a_step_never_asks_the_device_for_a_number(paged, mode, kernels):
    case = paged.ragged(mode, **BOTH, kernels=kernels)
    with Watch():
        case.run()


def test_one_long_prompt_among_short_ones_pads_nothing_to_its_length(paged):
    lens = (600, *range(1, 16))
    case = paged(EXTEND, prefixes=(0,) * len(lens), lens=lens)
    with Watch() as watch:
        case.run()
    assert watch.largest <= sum(lens) * max(lens)


def test_static_memory_is_what_the_largest_batch_can_need(paged):
    case = paged.ragged(DECODE, padded=True, **BOTH)
    pages = 9 * case.width // 16
    shapes = {name: tuple(memory.shape) for name, memory in case.static.items()}
    assert shapes == {
        "trtllm_mha.pages": (pages,),
        "trtllm_mha.swa_pages": (pages,),
        "trtllm_mha.swa_out": (9,),
    }


# --- captured steps


@MODES
@pytest.mark.parametrize(
    ("longest", "key"), [(0, 128), (1, 128), (128, 128), (129, 256), (600, 624), (624, 624)]
)
def test_torch_tells_captured_lengths_apart_by_powers_of_two(paged, mode, longest, key):
    case = paged(mode, prefixes=(599,), lens=(1,))
    assert case.width == 624
    batch = attrs.evolve(case.batch, max_seq_len=longest)
    assert case.backend.graph_key(batch) == key
    # What is replayed for `batch` serves the longest sequence of that key, and has it too.
    view = attrs.evolve(batch, max_seq_len=key, bucket=Bucket(mode, 1, 1, key, key))
    assert case.backend.graph_key(view) == key


@interpreted
@MODES
@pytest.mark.parametrize(
    ("longest", "key"), [(0, 1024), (1024, 1024), (1025, 4096), (4097, 5024), (9999, 5024)]
)
def test_triton_tells_them_apart_by_four_times_the_length(paged, mode, longest, key):
    case = paged(mode, prefixes=(5000,), lens=(1,), head_dim=8, kernels="triton")
    assert case.width == 5024
    batch = attrs.evolve(case.batch, max_seq_len=longest)
    assert case.backend.graph_key(batch) == key
    view = attrs.evolve(batch, max_seq_len=key, bucket=Bucket(mode, 1, 1, key, key))
    assert case.backend.graph_key(view) == key


@pytest.mark.parametrize("mode", [EXTEND, MIXED], ids=lambda m: m.name)
def test_torch_runs_a_prefill_of_several_requests_eagerly(paged, mode):
    # The host splits it into requests, and no capture has that split but its own.
    several = paged(mode, prefixes=(0, 4), lens=(3, 5))
    assert several.backend.graph_key(several.batch) is None
    one = paged(mode, prefixes=(4,), lens=(5,))
    assert one.backend.graph_key(one.batch) == one.width


@MODES
@pytest.mark.parametrize("length", [5, 100, 129])
@KERNELS
def test_a_bucket_may_end_anywhere(paged, mode, length, kernels):
    # The pool, not a power of two, may bound the longest sequence.
    case = paged(mode, prefixes=(length - 1,), lens=(1,), page_size=64, kernels=kernels)
    case.batch = attrs.evolve(case.batch, bucket=Bucket(mode, 1, 1, max_seq_len=length))
    case.check()


def test_each_bucket_keeps_what_its_capture_left_for_the_attention(paged):
    given = {"dtype": torch.float64, "graph": GraphKind.BREAKABLE, **BOTH}
    case = paged(DECODE, prefixes=(20, 3), lens=(1, 1), **given)
    wide, narrow = (Bucket(DECODE, 2, 2, length, length) for length in (48, 24))
    live, backend = case.batch, case.backend
    with torch.inference_mode():
        for bucket in (wide, narrow):
            view = attrs.evolve(live, bucket=bucket, max_seq_len=bucket.max_seq_len)
            backend.init_forward_metadata_in_graph(view)
        # An eager step in between leaves metadata of its own.
        backend.init_forward_metadata_in_graph(attrs.evolve(live, max_seq_len=24))
        for bucket in (wide, narrow, wide):
            case.batch = attrs.evolve(live, bucket=bucket, max_seq_len=bucket.max_seq_len)
            backend.init_forward_metadata_out_graph(case.batch)
            tables, plan = backend._step
            assert plan.slots.shape == (2, bucket.max_seq_len)
            # What a replay would do to the tables, which all steps share.
            backend._tables.snapshot(case.batch)
            plan.slots.copy_(backend._attention.plan(case.batch, tables).slots)
            case.check(case.body())


@pytest.mark.parametrize("graph", list(GraphKind), ids=lambda kind: kind.name)
def test_nothing_is_kept_for_eager_steps(paged, graph):
    case = paged(DECODE, prefixes=(20,), lens=(1,), graph=graph)
    case.run()
    assert case.backend._captured == {}


def test_nothing_is_kept_for_unbroken_graphs_whose_masks_share_memory(paged):
    case = paged(DECODE, prefixes=(20,), lens=(1,), graph=GraphKind.UNBROKEN)
    case.batch = attrs.evolve(case.batch, bucket=Bucket(DECODE, 1, 1, 24))
    case.run()
    assert case.backend._captured == {}


# --- on a GPU

GPU = pytest.mark.parametrize("kernels", ["torch", "triton"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@MODES
@GPU
def test_it_computes_the_same_on_a_gpu(paged, mode, dtype, head_dim, kernels):
    shape = {"ratio": 3, "dtype": dtype, "head_dim": head_dim}
    device = torch.device("cuda")
    paged.ragged(mode, **BOTH, **shape, padded=True, device=device, kernels=kernels).check()


@pytest.mark.gpu
@LATE
@GPU
def test_a_captured_step_replays_with_other_lengths(paged, mode, kernels):
    device = torch.device("cuda")
    more = {"graph": GraphKind.UNBROKEN, "device": device, "windows": (None, 9)}
    case = paged.ragged(mode, ratio=3, **more, kernels=kernels)
    live = case.batch
    # Captured on padding rows: what tells requests apart arrives with the replay.
    names = ("rows", "seq_lens", "out_slots", "positions")
    static = attrs.evolve(live, **{name: torch.zeros_like(getattr(live, name)) for name in names})
    static.seq_lens.fill_(1)
    case.batch = static
    q = case.q.to(device)
    news = [{n: x.to(device) for n, x in new.items()} for new in case.new]

    def step():
        case.backend.init_forward_metadata_in_graph(static)
        layers = zip(case.layers, news, strict=True)
        outs = [case.backend.forward(q, new["k"], new["v"], layer, static) for layer, new in layers]
        return torch.stack(outs)

    with torch.inference_mode():
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        for name in names:
            getattr(static, name).copy_(getattr(live, name))
        graph.replay()
        torch.cuda.synchronize()
    case.check(out)
