"""TorchNative against dense attention, request by request, in float64."""

from __future__ import annotations

import itertools
import math

import attrs
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warcore import (
    AttentionSpec,
    BackendContext,
    Bucket,
    ForwardBatch,
    ForwardMode,
    GraphKind,
    Layer,
    NoOptions,
    SharedReadEnds,
)
from warcore_backend_torch_native import TorchNative
from warcore_backend_torch_native.masks import score_mask


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tensors this small are slower on several threads, and far slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


PREFILL = {ForwardMode.EXTEND, ForwardMode.MIXED}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
CPU = torch.device("cpu")


@attrs.define
class Shared:
    """The live buffers, as a test owns them."""

    req_to_token: torch.Tensor
    full_to_swa: torch.Tensor | None = None


@attrs.define(slots=False)
class Case:
    """Requests with `prefixes` settled tokens and `lens` new ones, in memory that is NaN elsewhere.

    Poison is everything that no live request owns: other slots of their last pages, other pages,
    slot 0, and what the padding tokens bring.
    """

    mode: ForwardMode
    prefixes: tuple[int, ...]
    lens: tuple[int, ...]
    kv_heads: int = 2
    ratio: int = 1
    head_dim: int = 64
    page_size: int = 16
    dtype: torch.dtype = torch.float32
    windows: tuple[int | None, ...] = (None,)
    mapped: bool = False
    """Layers with a window have a pool of their own, in which nothing lies behind the window."""
    tree: bool = False
    drafts: int = 5
    """K + 1: columns of the tree mask."""
    pad_rows: int = 0
    pad_tokens: int = 0
    pad_seq_len: int = 1
    graph: GraphKind = GraphKind.NONE
    device: torch.device = CPU
    seed: int = 0
    rows: list[int] = attrs.field(init=False)
    shared: Shared = attrs.field(init=False)
    backend: TorchNative = attrs.field(init=False)
    batch: ForwardBatch = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.random = torch.Generator().manual_seed(self.seed)
        seq_lens = [p + n for p, n in zip(self.prefixes, self.lens, strict=True)]
        self.max_context = max(*seq_lens, self.page_size) + 2 * self.page_size
        self.slots = self._own_pages(seq_lens)
        live = len(self.lens)
        self.rows = (1 + torch.randperm(live + 3, generator=self.random)[:live]).tolist()
        table = torch.zeros(live + 4, self.max_context, dtype=torch.int32)
        for row, slots in zip(self.rows, self.slots, strict=True):
            # Beyond its end a row holds what was left there: slots that others may own by now.
            table[row] = torch.randint(self.pool, (self.max_context,), generator=self.random)
            table[row, : len(slots)] = slots
        self.shared = Shared(table.to(self.device))
        if self.mapped:
            self.shared.full_to_swa = self._map().to(self.device)
        self._fill_memory(seq_lens)
        self.batch = self._batch(seq_lens)
        self.backend = TorchNative(self._context())

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    @property
    def layers(self):
        # Not torch's default scale.
        q_heads, scale = self.kv_heads * self.ratio, 1.3 / math.sqrt(self.head_dim)
        return [
            Layer(i, q_heads, self.kv_heads, self.head_dim, scale, window)
            for i, window in enumerate(self.windows)
        ]

    def _own_pages(self, seq_lens):
        """Whole pages for each request, in random order; page 0 belongs to nobody."""
        counts = [-(-n // self.page_size) for n in seq_lens]
        pages = (1 + torch.randperm(sum(counts) + 2, generator=self.random)).tolist()
        self.pool = (len(pages) + 1) * self.page_size
        offsets = torch.arange(self.page_size)
        slots = []
        for count, length in zip(counts, seq_lens, strict=True):
            own = torch.tensor([pages.pop() for _ in range(count)]) * self.page_size
            slots.append((own[:, None] + offsets).flatten()[:length])
        return slots

    def _kept(self, prefix):
        """The first position that the window pool still holds; its page is there as a whole."""
        longest = max(window for window in self.windows if window is not None)
        return max(prefix - longest + 1, 0) // self.page_size * self.page_size

    def _map(self):
        """Live pages lead to pages in another order, those behind the windows to the padding page.

        Pages that nobody owns lead to those of others, as they may when a page changes hands.
        """
        pages = self.pool // self.page_size
        offsets = torch.arange(self.page_size)
        led = 1 + torch.randperm(pages - 1, generator=self.random).repeat(2)[:pages]
        led[0] = 0
        for slots, prefix in zip(self.slots, self.prefixes, strict=True):
            led[slots[: self._kept(prefix)] // self.page_size] = 0
        return (led[:, None] * self.page_size + offsets).flatten().int()

    def _fill_memory(self, seq_lens):
        shape = (self.pool // self.page_size, self.page_size, self.kv_heads, self.head_dim)
        self.kv, self.dense, self.new = [], [], []
        for window in self.windows:
            memory = {name: torch.full(shape, math.nan, dtype=self.dtype) for name in "kv"}
            dense = [{n: self.noise(s, *shape[2:]) for n in "kv"} for s in seq_lens]
            for slots, own, prefix in zip(self.slots, dense, self.prefixes, strict=True):
                kept, at = 0, slots
                if self.mapped and window is not None:
                    kept, at = self._kept(prefix), self.shared.full_to_swa.cpu()[slots].long()
                for name, values in memory.items():
                    values.view(-1, *shape[2:])[at[kept:prefix]] = own[name][kept:prefix]
            self.kv.append({name: values.to(self.device) for name, values in memory.items()})
            self.dense.append(dense)
            poison = torch.full((self.pad_tokens, *shape[2:]), math.nan, dtype=self.dtype)
            fresh = zip(dense, self.prefixes, strict=True)
            parts = [{n: own[n][prefix:] for n in "kv"} for own, prefix in fresh]
            self.new.append({n: torch.cat([*(x[n] for x in parts), poison]) for n in "kv"})
        self.q = self.noise(sum(self.lens), self.kv_heads * self.ratio, self.head_dim)

    def _positions(self):
        """Places in the sequence; in a tree, depths below the settled prefix."""
        if not self.tree:
            spans = zip(self.prefixes, self.lens, strict=True)
            return torch.cat([torch.arange(p, p + n) for p, n in spans])
        self.parents = []
        positions = []
        for prefix, count in zip(self.prefixes, self.lens, strict=True):
            draw = [int(torch.randint(i, (1,), generator=self.random)) for i in range(1, count)]
            parents = [-1, *draw]
            self.parents.append(parents)
            positions += [prefix + len(ancestors(parents, i)) - 1 for i in range(count)]
        return torch.tensor(positions)

    def _tree_mask(self):
        mask = torch.zeros(sum(self.lens) + self.pad_tokens, self.drafts, dtype=torch.bool)
        token = 0
        for parents in self.parents:
            for i in range(len(parents)):
                mask[token, ancestors(parents, i)] = True
                token += 1
        return mask

    def _batch(self, seq_lens):
        live, tokens = len(self.lens), sum(self.lens)
        pad, rows = [0] * self.pad_tokens, [0] * self.pad_rows
        start = list(itertools.accumulate(self.lens, initial=0))
        per_row = self.pad_tokens // self.pad_rows if self.pad_rows else 0
        start += [
            min(tokens + per_row * (i + 1), tokens + self.pad_tokens) for i in range(self.pad_rows)
        ]
        q_row = [i for i, n in enumerate(self.lens) for _ in range(n)]
        q_row += [
            min(live + i // max(per_row, 1), live + self.pad_rows - 1) for i in range(len(pad))
        ]
        fresh = zip(self.slots, self.prefixes, strict=True)
        i64, i32 = torch.int64, torch.int32
        positions = torch.cat([self._positions(), torch.tensor(pad, dtype=i64)])
        out_slots = torch.cat([*(s[p:] for s, p in fresh), torch.tensor(pad, dtype=i64)])
        self.poison = torch.full((self.pad_tokens, *self.q.shape[1:]), math.nan, dtype=self.dtype)
        on = self.device
        return ForwardBatch(
            mode=self.mode,
            size=live,
            padded_size=live + self.pad_rows,
            padded_tokens=tokens + self.pad_tokens,
            tokens=torch.zeros(tokens + self.pad_tokens, dtype=i64, device=on),
            rows=torch.tensor(self.rows + rows, device=on),
            seq_lens=torch.tensor(
                seq_lens + [self.pad_seq_len] * self.pad_rows, dtype=i32, device=on
            ),
            q_start=torch.tensor(start, dtype=i32, device=on),
            q_row=torch.tensor(q_row, dtype=i64, device=on),
            positions=positions.to(on),
            out_slots=out_slots.to(on),
            max_seq_len=max(seq_lens),
            max_q_len=max(self.lens),
            extend_lens=self.lens if self.mode in PREFILL else (),
            tree_mask=self._tree_mask().to(on) if self.tree else None,
        )

    def _context(self):
        static = {}

        def take(name, shape, dtype):
            return static.setdefault(name, torch.zeros(shape, dtype=dtype, device=self.device))

        return BackendContext(
            spec=spec(self),
            max_batch=self.batch.padded_size + 1,
            max_tokens=self.batch.padded_tokens,
            shared=self.shared,
            kv=self.kv,
            graph=self.graph,
            options=NoOptions(),
            static=take,
            stage=None,
        )

    def overwrite_shared(self):
        """What the schedule stream may do once the reads have ended."""
        self.shared.req_to_token.fill_(2**31 - 1)
        if self.mapped:
            self.shared.full_to_swa.fill_(2**31 - 1)

    def body(self):
        """Every layer's output of the live tokens, [layers, T, q_heads, D]."""
        outs = []
        for layer, new in zip(self.layers, self.new, strict=True):
            q, k, v = torch.cat([self.q, self.poison]), new["k"], new["v"]
            args = [x.to(self.device) for x in (q, k, v)]
            outs.append(self.backend.forward(*args, layer, self.batch))
            assert outs[-1].shape == q.shape
        return torch.stack(outs)[:, : sum(self.lens)]

    def run(self):
        with torch.inference_mode():
            self.backend.init_forward_metadata_out_graph(self.batch)
            self.backend.init_forward_metadata_in_graph(self.batch)
            return self.body()

    def seen(self, request, i, window):
        """The positions that a request's new token `i` sees, one by one."""
        prefix = self.prefixes[request]
        if not self.tree:
            at = prefix + i
            return [j for j in range(at + 1) if window is None or at - j < window]
        parents = self.parents[request]
        depth = {j: len(ancestors(parents, j)) - 1 for j in range(len(parents))}
        at = prefix + depth[i]
        own = [j for j in ancestors(parents, i) if window is None or depth[i] - depth[j] < window]
        settled = [j for j in range(prefix) if window is None or at - j < window]
        return settled + [prefix + j for j in own]

    def expected(self):
        outs = []
        for layer, dense in zip(self.layers, self.dense, strict=True):
            token = 0
            for request, count in enumerate(self.lens):
                own = {
                    n: x.double().repeat_interleave(self.ratio, 1)
                    for n, x in dense[request].items()
                }
                for i in range(count):
                    seen = self.seen(request, i, layer.window)
                    q = self.q[token].double()
                    score = torch.einsum("hd,lhd->hl", q, own["k"][seen]) * layer.scale
                    outs.append(torch.einsum("hl,lhd->hd", score.softmax(-1), own["v"][seen]))
                    token += 1
        return torch.stack(outs).view(len(self.windows), -1, *self.q.shape[1:])

    def check(self):
        assert_close(self.run(), self.expected(), TOLERANCE[self.dtype])


def spec(case):
    return AttentionSpec(
        q_heads=case.kv_heads * case.ratio,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
        kv_dtype=case.dtype,
        page_size=case.page_size,
        max_context=case.max_context,
        windows=frozenset(case.windows),
        tree=case.tree,
        device=case.device,
        role="target",
    )


def ancestors(parents, i):
    """`i` and all above it."""
    return [] if i < 0 else [*ancestors(parents, parents[i]), i]


def assert_close(got, expected, tolerance):
    worst = (got.double().cpu() - expected).abs().max() / expected.abs().max()
    assert worst < tolerance


RAGGED = {
    # Prefixes from none over part of a page and exact pages to several pages.
    ForwardMode.EXTEND: {"prefixes": (0, 7, 64, 131, 0), "lens": (1, 30, 5, 17, 70)},
    ForwardMode.MIXED: {"prefixes": (0, 7, 64, 131, 99), "lens": (20, 1, 5, 1, 1)},
    ForwardMode.DECODE: {"prefixes": (0, 15, 16, 63, 64, 200), "lens": (1,) * 6},
    ForwardMode.TARGET_VERIFY: {"prefixes": (1, 15, 64, 130), "lens": (5,) * 4, "tree": True},
    ForwardMode.DRAFT_EXTEND: {"prefixes": (3, 15, 64, 130), "lens": (1, 5, 2, 3)},
}
MODES = pytest.mark.parametrize("mode", RAGGED, ids=lambda m: m.name)


# --- what it computes


@MODES
@pytest.mark.parametrize("ratio", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_ragged_batches_attend_to_their_own_past(mode, ratio, head_dim, page_size):
    shape = {"ratio": ratio, "head_dim": head_dim, "page_size": page_size}
    Case(mode, **RAGGED[mode], **shape).check()


@MODES
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_each_dtype_is_as_exact_as_it_can_be(mode, dtype):
    Case(mode, **RAGGED[mode], ratio=3, dtype=dtype).check()


@MODES
def test_layers_honour_their_own_windows(mode):
    Case(mode, **RAGGED[mode], windows=(None, 1, 3, 20, 1000), dtype=torch.float64).check()


@MODES
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("windows", [(None, 20), (1,), (3, None, 20), (1000, None)], ids=str)
def test_layers_with_a_window_find_their_past_in_a_pool_of_their_own(mode, page_size, windows):
    shape = {"page_size": page_size, "windows": windows, "mapped": True}
    Case(mode, **RAGGED[mode], **shape, dtype=torch.float64).check()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_drafted_token_sees_its_ancestors_only(seed, mapped):
    trees = {"prefixes": (1, 33, 16), "lens": (8, 8, 8), "tree": True, "drafts": 8}
    trees |= {"mapped": mapped, "page_size": 4}
    windows = (None, 2, 4)
    Case(
        ForwardMode.TARGET_VERIFY, **trees, windows=windows, dtype=torch.float64, seed=seed
    ).check()


def test_verified_blocks_may_be_ragged():
    ragged = {"prefixes": (1, 33, 16), "lens": (2, 5, 1), "tree": True}
    Case(ForwardMode.TARGET_VERIFY, **ragged, pad_rows=1, pad_tokens=7, windows=(None, 2)).check()


@pytest.mark.parametrize("mapped", [False, True])
def test_a_request_without_new_tokens_disturbs_nobody(mapped):
    given = {"windows": (None, 1), "mapped": mapped}
    Case(ForwardMode.EXTEND, prefixes=(3, 9, 20), lens=(4, 0, 2), **given).check()


def test_a_chain_needs_no_tree_mask():
    Case(ForwardMode.TARGET_VERIFY, prefixes=(3, 20), lens=(5, 5)).check()


PADDING = {
    ForwardMode.EXTEND: (2, 9),
    ForwardMode.MIXED: (2, 9),
    ForwardMode.DECODE: (3, 3),
    ForwardMode.TARGET_VERIFY: (2, 10),
    ForwardMode.DRAFT_EXTEND: (2, 6),
}


@MODES
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seq_len", [0, 1])
def test_no_poison_of_padding_or_of_unowned_slots_reaches_a_live_token(mode, seq_len, mapped):
    rows, tokens = PADDING[mode]
    padding = {"pad_rows": rows, "pad_tokens": tokens, "pad_seq_len": seq_len, "mapped": mapped}
    Case(mode, **RAGGED[mode], **padding, windows=(None, 4)).check()


@MODES
def test_padding_that_holds_numbers_comes_out_as_numbers(mode):
    rows, tokens = PADDING[mode]
    case = Case(mode, **RAGGED[mode], pad_rows=rows, pad_tokens=tokens, pad_seq_len=0)
    case.poison.fill_(1)
    outs = []
    case.run()
    for new in case.new:
        for values in new.values():
            values.nan_to_num_(1.0)
    for layer, new in zip(case.layers, case.new, strict=True):
        q = torch.cat([case.q, case.poison])
        outs.append(case.backend.forward(q, new["k"], new["v"], layer, case.batch))
    assert torch.stack(outs).isfinite().all()


def test_a_token_that_sees_nothing_has_no_row_of_infinities():
    # Kernels differ in what they make of one; some give NaN.
    case = Case(ForwardMode.TARGET_VERIFY, **RAGGED[ForwardMode.TARGET_VERIFY])
    case.batch.tree_mask.fill_(False)
    columns = torch.arange(case.max_context)
    for dtype in TOLERANCE:
        assert score_mask(case.batch, columns, 1, dtype).isfinite().all()


# --- where its reads end


ENDS = {
    ForwardMode.EXTEND: SharedReadEnds.PRE_REPLAY,
    ForwardMode.DECODE: SharedReadEnds.IN_REPLAY,
    ForwardMode.TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
    ForwardMode.DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
    ForwardMode.MIXED: SharedReadEnds.UNKNOWN,
}


BOTH = {"windows": (None, 9), "mapped": True}
"""Layers of both kinds, and both shared tables."""


@MODES
def test_after_its_declared_end_nothing_shared_matters(mode):
    case = Case(mode, **RAGGED[mode], **BOTH)
    assert case.backend.shared_read_ends(mode) is ENDS[mode]
    with torch.inference_mode():
        case.backend.init_forward_metadata_out_graph(case.batch)
        if ENDS[mode] is SharedReadEnds.PRE_REPLAY:
            case.overwrite_shared()
        case.backend.init_forward_metadata_in_graph(case.batch)
        case.overwrite_shared()
        got = case.body()
    assert_close(got, case.expected(), TOLERANCE[case.dtype])


@pytest.mark.parametrize("mode", [m for m in RAGGED if m not in PREFILL], ids=lambda m: m.name)
def test_what_a_graph_would_replay_reads_nothing_of_the_out_graph_hook(mode):
    case = Case(mode, **RAGGED[mode], **BOTH)
    with torch.inference_mode():
        case.backend.init_forward_metadata_in_graph(case.batch)
        assert_close(case.body(), case.expected(), TOLERANCE[case.dtype])


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
def test_a_step_never_asks_the_device_for_a_number(mode):
    case = Case(mode, **RAGGED[mode], **BOTH)
    with Watch():
        case.run()


def test_one_long_prompt_among_short_ones_pads_nothing_to_its_length():
    lens = (2000, *range(1, 32))
    case = Case(ForwardMode.EXTEND, prefixes=(0,) * len(lens), lens=lens)
    with Watch() as watch:
        case.run()
    assert watch.largest <= sum(lens) * case.backend._length(case.batch)


@pytest.mark.parametrize(
    ("longest", "eager", "key"),
    [
        (0, 8, 128),
        (1, 8, 128),
        (64, 64, 128),
        (65, 72, 128),
        (128, 128, 128),
        (129, 136, 256),
        (600, 600, 632),
        (632, 632, 632),
    ],
)
@MODES
def test_eager_steps_gather_a_multiple_of_8_and_captured_ones_their_buckets_length(
    mode, longest, eager, key
):
    case = Case(mode, prefixes=(599,), lens=(1,))
    assert case.max_context == 632
    batch = attrs.evolve(case.batch, max_seq_len=longest)
    assert case.backend._length(batch) == eager
    assert case.backend.graph_key(batch) == key
    # What is replayed for `batch` serves the longest sequence of that key, and has it too.
    bucket = Bucket(mode, 1, 1, max_seq_len=key, key=key)
    view = attrs.evolve(batch, max_seq_len=key, bucket=bucket)
    assert case.backend._length(view) == key
    assert case.backend.graph_key(view) == key


@MODES
@pytest.mark.parametrize("length", [5, 100, 129])
def test_a_bucket_may_end_anywhere(mode, length):
    # The pool, not a power of two, may bound the longest sequence.
    case = Case(mode, prefixes=(length - 1,), lens=(1,), page_size=64)
    bucket = Bucket(mode, 1, 1, max_seq_len=length)
    assert case.backend._length(attrs.evolve(case.batch, bucket=bucket)) == length
    case.batch = attrs.evolve(case.batch, bucket=bucket)
    case.check()


@pytest.mark.parametrize("mode", sorted(PREFILL, key=str), ids=lambda m: m.name)
def test_a_prefill_of_several_requests_runs_eagerly(mode):
    # The host splits it into requests, and no capture has that split but its own.
    several = Case(mode, prefixes=(0, 4), lens=(3, 5))
    assert several.backend.graph_key(several.batch) is None
    one = Case(mode, prefixes=(4,), lens=(5,))
    assert one.backend.graph_key(one.batch) == one.max_context


# --- what a replay finds of its capture


def test_each_bucket_keeps_what_its_capture_left_for_the_attention():
    case = Case(
        ForwardMode.DECODE,
        prefixes=(20, 3),
        lens=(1, 1),
        **BOTH,
        dtype=torch.float64,
        graph=GraphKind.BREAKABLE,
    )
    wide, narrow = (Bucket(ForwardMode.DECODE, 2, 2, length, length) for length in (48, 24))
    live = case.batch
    with torch.inference_mode():
        for bucket in (wide, narrow):
            view = attrs.evolve(live, bucket=bucket, max_seq_len=bucket.max_seq_len)
            case.backend.init_forward_metadata_in_graph(view)
        # An eager step in between leaves metadata of its own.
        case.backend.init_forward_metadata_in_graph(attrs.evolve(live, max_seq_len=24))
        for bucket in (wide, narrow, wide):
            case.batch = attrs.evolve(live, bucket=bucket, max_seq_len=bucket.max_seq_len)
            case.backend.init_forward_metadata_out_graph(case.batch)
            metadata = case.backend._metadata
            assert metadata.slots.shape == (2, bucket.max_seq_len)
            # What a replay would do to the table, which all steps share.
            case.backend._gather_slots(case.batch)
            assert_close(case.body(), case.expected(), TOLERANCE[case.dtype])


@pytest.mark.parametrize("graph", list(GraphKind), ids=lambda kind: kind.name)
def test_nothing_is_kept_for_eager_steps(graph):
    case = Case(ForwardMode.DECODE, prefixes=(20,), lens=(1,), graph=graph)
    case.run()
    assert case.backend._captured == {}


def test_nothing_is_kept_for_unbroken_graphs_whose_masks_share_memory():
    case = Case(ForwardMode.DECODE, prefixes=(20,), lens=(1,), graph=GraphKind.UNBROKEN)
    case.batch = attrs.evolve(case.batch, bucket=Bucket(ForwardMode.DECODE, 1, 1, 24))
    case.run()
    assert case.backend._captured == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@MODES
def test_it_computes_the_same_on_a_gpu(mode, dtype):
    Case(mode, **RAGGED[mode], **BOTH, ratio=3, dtype=dtype, device=torch.device("cuda")).check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", [m for m in RAGGED if m not in PREFILL], ids=lambda m: m.name)
def test_a_captured_step_replays_with_other_lengths(mode):
    device = torch.device("cuda")
    case = Case(
        mode, **RAGGED[mode], ratio=3, graph=GraphKind.UNBROKEN, device=device, windows=(None, 9)
    )
    live = case.batch
    # Captured on padding rows: what tells requests apart arrives with the replay.
    static = attrs.evolve(
        live,
        rows=torch.zeros_like(live.rows),
        seq_lens=torch.ones_like(live.seq_lens),
        out_slots=torch.zeros_like(live.out_slots),
        positions=torch.zeros_like(live.positions),
        q_start=live.q_start.clone(),
        q_row=live.q_row.clone(),
    )
    case.batch = static
    inputs = [torch.cat([case.q, case.poison]).to(device)]

    def step():
        case.backend.init_forward_metadata_in_graph(static)
        outs = []
        for layer, new in zip(case.layers, news, strict=True):
            outs.append(case.backend.forward(inputs[0], new["k"], new["v"], layer, static))
        return torch.stack(outs)

    news = [{n: x.to(device) for n, x in new.items()} for new in case.new]
    with torch.inference_mode():
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        for name in ("rows", "seq_lens", "out_slots", "positions"):
            getattr(static, name).copy_(getattr(live, name))
        graph.replay()
        torch.cuda.synchronize()
    assert_close(out, case.expected(), TOLERANCE[case.dtype])


# --- what it refuses


def test_every_reason_against_a_spec_is_given_at_once():
    case = Case(ForwardMode.DECODE, prefixes=(1,), lens=(1,), ratio=3)
    assert TorchNative.why_not(spec(case)) == []
    odd = attrs.evolve(spec(case), q_heads=7, dtype=torch.int8, kv_dtype=torch.float8_e4m3fn)
    reasons = TorchNative.why_not(odd)
    assert len(reasons) == 3
    assert "7 query heads over 2 KV heads" in reasons
