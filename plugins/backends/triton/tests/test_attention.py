"""Triton against dense attention, request by request, in float64.

On a CPU the kernels run in Triton's interpreter: TRITON_INTERPRET=1 pytest plugins/backends/triton
"""

from __future__ import annotations

import itertools
import math
import threading

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
from warcore_backend_triton import Triton
from warcore_backend_triton.interpreter import why_not

CPU = torch.device("cpu")
WHY_NOT = why_not(CPU)
interpreted = pytest.mark.skipif(bool(WHY_NOT), reason=f"cannot run kernels on {WHY_NOT}")

EXTEND, MIXED, DECODE, TARGET_VERIFY, DRAFT_EXTEND = (
    ForwardMode.EXTEND,
    ForwardMode.MIXED,
    ForwardMode.DECODE,
    ForwardMode.TARGET_VERIFY,
    ForwardMode.DRAFT_EXTEND,
)
PREFILL = {EXTEND, MIXED}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tensors this small are slower on several threads, and far slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@attrs.define
class Shared:
    """The live buffers, as a test owns them."""

    req_to_token: torch.Tensor
    full_to_swa: torch.Tensor | None = None


@attrs.define(slots=False)
class Case:
    """Requests with `prefixes` settled tokens and `lens` new ones, in memory that is NaN elsewhere:
    in slots that no live request owns, and in what padding tokens bring.
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
    small_tiles: bool = False
    """Cut the step as for a GPU, although the kernels are interpreted."""
    seed: int = 0

    def __attrs_post_init__(self):
        self.random = torch.Generator().manual_seed(self.seed)
        self.seq_lens = [p + n for p, n in zip(self.prefixes, self.lens, strict=True)]
        self.width = (-(-max(self.seq_lens) // self.page_size) + 1) * self.page_size
        self.slots = self._own_pages()
        live = len(self.lens)
        self.rows = (1 + torch.randperm(live + 3, generator=self.random)[:live]).tolist()
        table = torch.randint(self.pool, (live + 4, self.width), generator=self.random).int()
        table[0] = 0
        for row, slots in zip(self.rows, self.slots, strict=True):
            # Beyond its end a row holds what was left there: slots that others may own by now.
            table[row, : len(slots)] = slots.int()
        swa = self._map() if self.mapped else None
        self.shared = Shared(table.to(self.device), None if swa is None else swa.to(self.device))
        self._fill_memory()
        self.batch = self._batch()
        self.backend = Triton(self._context())
        if self.small_tiles:
            self.backend._interpreted = False

    @property
    def layers(self):
        # Not torch's default scale.
        q_heads, scale = self.kv_heads * self.ratio, 1.3 / math.sqrt(self.head_dim)
        return [
            Layer(i, q_heads, self.kv_heads, self.head_dim, scale, window)
            for i, window in enumerate(self.windows)
        ]

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    def _own_pages(self):
        """Whole pages for each request, in random order; page 0 belongs to nobody."""
        counts = [-(-n // self.page_size) for n in self.seq_lens]
        pages = (1 + torch.randperm(sum(counts) + 2, generator=self.random)).tolist()
        self.pool = (len(pages) + 1) * self.page_size
        offsets = torch.arange(self.page_size)
        slots = []
        for count, length in zip(counts, self.seq_lens, strict=True):
            own = torch.tensor([pages.pop() for _ in range(count)]) * self.page_size
            slots.append((own[:, None] + offsets).flatten()[:length])
        return slots

    def _kept(self, prefix):
        """The first position that the window pool still holds; its page is there as a whole."""
        longest = max(window for window in self.windows if window is not None)
        return max(prefix - longest + 1, 0) // self.page_size * self.page_size

    def _map(self):
        """Live pages lead to pages in another order, those behind the windows to page 0."""
        pages = self.pool // self.page_size
        led = torch.cat([torch.zeros(1), 1 + torch.randperm(pages - 1, generator=self.random)])
        for slots, prefix in zip(self.slots, self.prefixes, strict=True):
            led[slots[: self._kept(prefix)] // self.page_size] = 0
        return (led[:, None] * self.page_size + torch.arange(self.page_size)).flatten().int()

    def _fill_memory(self):
        shape = (self.pool // self.page_size, self.page_size, self.kv_heads, self.head_dim)
        self.kv, self.dense, self.new = [], [], []
        for window in self.windows:
            memory = {name: torch.full(shape, math.nan, dtype=self.dtype) for name in "kv"}
            dense = [{n: self.noise(s, *shape[2:]) for n in "kv"} for s in self.seq_lens]
            for slots, own, prefix in zip(self.slots, dense, self.prefixes, strict=True):
                kept, at = 0, slots
                if self.mapped and window is not None:
                    kept, at = self._kept(prefix), self.shared.full_to_swa.cpu()[slots].long()
                for name, values in memory.items():
                    values.view(-1, *shape[2:])[at[kept:prefix]] = own[name][kept:prefix]
            self.kv.append({name: values.to(self.device) for name, values in memory.items()})
            self.dense.append(dense)
            poison = torch.full((self.pad_tokens, *shape[2:]), math.nan, dtype=self.dtype)
            parts = [
                {n: own[n][prefix:] for n in "kv"}
                for own, prefix in zip(dense, self.prefixes, strict=True)
            ]
            self.new.append({n: torch.cat([*(x[n] for x in parts), poison]) for n in "kv"})
        q_heads = self.kv_heads * self.ratio
        self.q = self.noise(sum(self.lens), q_heads, self.head_dim)
        self.poison = torch.full((self.pad_tokens, q_heads, self.head_dim), math.nan)

    def _positions(self):
        """Places in the sequence; in a tree, depths below the settled prefix."""
        spans = list(zip(self.prefixes, self.lens, strict=True))
        if not self.tree:
            return torch.cat([torch.arange(p, p + n) for p, n in spans])
        self.parents = [
            [-1, *(int(torch.randint(i, (1,), generator=self.random)) for i in range(1, n))]
            for n in self.lens
        ]
        return torch.tensor(
            [
                prefix + len(ancestors(parents, i)) - 1
                for (prefix, count), parents in zip(spans, self.parents, strict=True)
                for i in range(count)
            ]
        )

    def _tree_mask(self):
        mask = torch.zeros(sum(self.lens) + self.pad_tokens, self.drafts, dtype=torch.bool)
        tokens = ((parents, i) for parents in self.parents for i in range(len(parents)))
        for token, (parents, i) in enumerate(tokens):
            mask[token, ancestors(parents, i)] = True
        return mask

    def _batch(self):
        """Padding as `StaticInputs` has it: rows without tokens, tokens beyond the last row's; in a
        decode step a token for each row.
        """
        live, tokens = len(self.lens), sum(self.lens)
        pad = torch.zeros(self.pad_tokens, dtype=torch.int64)
        each = self.mode is DECODE
        start = list(itertools.accumulate(self.lens, initial=0))
        start += [tokens + (i + 1 if each else 0) for i in range(self.pad_rows)]
        q_row = [i for i, n in enumerate(self.lens) for _ in range(n)]
        last = live + self.pad_rows - 1
        q_row += [live + i if each else last for i in range(self.pad_tokens)]
        fresh = zip(self.slots, self.prefixes, strict=True)
        on = self.device
        return ForwardBatch(
            mode=self.mode,
            size=live,
            padded_size=live + self.pad_rows,
            padded_tokens=tokens + self.pad_tokens,
            tokens=torch.zeros(tokens + self.pad_tokens, dtype=torch.int64, device=on),
            rows=torch.tensor(self.rows + [0] * self.pad_rows, device=on),
            seq_lens=torch.tensor(self.seq_lens + [self.pad_seq_len] * self.pad_rows).int().to(on),
            q_start=torch.tensor(start).int().to(on),
            q_row=torch.tensor(q_row, device=on),
            positions=torch.cat([self._positions(), pad]).to(on),
            out_slots=torch.cat([*(s[p:] for s, p in fresh), pad]).to(on),
            max_seq_len=max(self.seq_lens),
            extend_lens=self.lens if self.mode in PREFILL else (),
            tree_mask=self._tree_mask().to(on) if self.tree else None,
        )

    def _context(self):
        self.static = {}

        def take(name, shape, dtype):
            return self.static.setdefault(name, torch.zeros(shape, dtype=dtype, device=self.device))

        return BackendContext(
            spec=spec(self),
            max_batch=self.batch.padded_size,
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
        """Every layer's output, [layers, T, q_heads, D]."""
        outs = []
        for layer, new in zip(self.layers, self.new, strict=True):
            q = torch.cat([self.q, self.poison.to(self.dtype)])
            args = [x.to(self.device) for x in (q, new["k"], new["v"])]
            outs.append(self.backend.forward(*args, layer, self.batch))
        return torch.stack(outs)

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
            places = [(r, i) for r, count in enumerate(self.lens) for i in range(count)]
            for token, (request, i) in enumerate(places):
                at = self.seen(request, i, layer.window)
                k, v = (
                    dense[request][n][at].double().repeat_interleave(self.ratio, 1) for n in "kv"
                )
                score = torch.einsum("hd,lhd->hl", self.q[token].double(), k) * layer.scale
                outs.append(torch.einsum("hl,lhd->hd", score.softmax(-1), v))
        return torch.stack(outs).view(len(self.windows), -1, *self.q.shape[1:])

    def check(self):
        self.check_output(self.run())

    def check_output(self, got):
        got = got[:, : sum(self.lens)]
        expected = self.expected()
        worst = (got.double().cpu() - expected).abs().max() / expected.abs().max()
        assert worst < TOLERANCE[self.dtype]


def spec(case, **changes):
    given = AttentionSpec(
        q_heads=case.kv_heads * case.ratio,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
        kv_dtype=case.dtype,
        page_size=case.page_size,
        max_context=case.width,
        windows=frozenset(case.windows),
        tree=case.tree,
        device=case.device,
        role="target",
    )
    return attrs.evolve(given, **changes)


def ancestors(parents, i):
    """`i` and all above it."""
    return [] if i < 0 else [*ancestors(parents, parents[i]), i]


RAGGED = {
    # Prefixes from none over part of a page and exact pages to several pages.
    EXTEND: {"prefixes": (0, 7, 64, 131, 0), "lens": (1, 9, 5, 17, 20)},
    MIXED: {"prefixes": (0, 7, 64, 131, 99), "lens": (20, 1, 5, 1, 1)},
    DECODE: {"prefixes": (0, 15, 16, 63, 64, 150), "lens": (1,) * 6},
    TARGET_VERIFY: {"prefixes": (1, 15, 64, 130), "lens": (5,) * 4, "tree": True},
    DRAFT_EXTEND: {"prefixes": (3, 15, 64, 130), "lens": (1, 5, 2, 3)},
}
MODES = pytest.mark.parametrize("mode", RAGGED, ids=lambda m: m.name)
BOTH = {"windows": (None, 9), "mapped": True}
"""Layers of both kinds, and both shared tables."""
PADDING = {EXTEND: (2, 9), MIXED: (2, 9), DECODE: (3, 3), TARGET_VERIFY: (2, 10)}
PADDING[DRAFT_EXTEND] = (2, 6)


# --- what it computes


@interpreted
@MODES
@pytest.mark.parametrize(
    ("ratio", "head_dim", "page_size"),
    [(1, 64, 1), (3, 80, 16), (4, 96, 64), (8, 128, 16), (3, 256, 1), (1, 8, 64), (7, 128, 64)],
)
def test_ragged_batches_attend_to_their_own_past(mode, ratio, head_dim, page_size):
    shape = {"ratio": ratio, "head_dim": head_dim, "page_size": page_size}
    Case(mode, **RAGGED[mode], **shape).check()


@interpreted
@MODES
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_each_dtype_is_as_exact_as_it_can_be(mode, dtype):
    Case(mode, **RAGGED[mode], ratio=3, dtype=dtype).check()


@interpreted
@pytest.mark.parametrize("kv_heads", [1, 3, 4])
def test_kv_heads_that_no_program_can_take_together(kv_heads):
    Case(DECODE, **RAGGED[DECODE], kv_heads=kv_heads, ratio=2, windows=(None, 5)).check()


@interpreted
@MODES
def test_layers_honour_their_own_windows(mode):
    Case(mode, **RAGGED[mode], windows=(None, 1, 3, 20, 1000)).check()


@interpreted
@MODES
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("windows", [(None, 20), (1,), (3, None, 20)], ids=str)
def test_layers_with_a_window_find_their_past_in_a_pool_of_their_own(mode, page_size, windows):
    shape = {"page_size": page_size, "windows": windows, "mapped": True}
    Case(mode, **RAGGED[mode], **shape).check()


@interpreted
@pytest.mark.parametrize("small_tiles", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_drafted_token_sees_its_ancestors_only(seed, small_tiles):
    trees = {"prefixes": (1, 33, 16), "lens": (8, 8, 8), "tree": True, "drafts": 8}
    more = {"small_tiles": small_tiles, "mapped": seed % 2 == 1, "page_size": 4}
    Case(TARGET_VERIFY, **trees, **more, windows=(None, 2, 4), seed=seed).check()


@interpreted
@pytest.mark.parametrize("small_tiles", [False, True])
def test_verified_blocks_may_be_ragged(small_tiles):
    ragged = {"prefixes": (1, 33, 16), "lens": (2, 5, 1), "tree": True, "windows": (None, 2)}
    padding = {"pad_rows": 1, "pad_tokens": 7}
    Case(TARGET_VERIFY, **ragged, **padding, small_tiles=small_tiles).check()


@interpreted
def test_a_chain_needs_no_tree_mask():
    Case(TARGET_VERIFY, prefixes=(3, 20), lens=(5, 5)).check()


@interpreted
@pytest.mark.parametrize("small_tiles", [False, True])
def test_a_request_without_new_tokens_disturbs_nobody(small_tiles):
    given = {"windows": (None, 1), "mapped": True, "small_tiles": small_tiles}
    Case(EXTEND, prefixes=(3, 9, 20), lens=(4, 0, 2), **given).check()


# --- how a step is cut


@interpreted
@MODES
def test_tiles_of_a_gpu_give_the_same(mode):
    more = {"ratio": 3, "windows": (None, 9), "small_tiles": True}
    pad_rows, pad_tokens = PADDING[mode]
    Case(mode, **RAGGED[mode], **more, pad_rows=pad_rows, pad_tokens=pad_tokens).check()


LONG = {
    EXTEND: {"prefixes": (700, 0), "lens": (3, 2)},
    DECODE: {"prefixes": (700, 5, 300), "lens": (1, 1, 1)},
    TARGET_VERIFY: {"prefixes": (600, 2), "lens": (3, 3), "tree": True, "drafts": 3},
}


@interpreted
@pytest.mark.parametrize("mode", LONG, ids=lambda m: m.name)
def test_long_sequences_are_split_and_put_together(mode):
    more = {"kv_heads": 1, "ratio": 3, "small_tiles": True, "windows": (None, 400)}
    case = Case(mode, **LONG[mode], **more, head_dim=80)
    case.check()
    # All tokens of the largest grid's splits found room, and used it.
    assert case.static["triton.partial"].count_nonzero()


@interpreted
@pytest.mark.parametrize("small_tiles", [False, True])
def test_a_tile_that_spans_requests_keeps_them_apart(small_tiles):
    # An average of four tokens: the tiles begin and end within requests.
    lens = (1, 2, 9, 1, 7)
    Case(EXTEND, prefixes=(5, 0, 30, 2, 1), lens=lens, small_tiles=small_tiles).check()


# --- what it does not look at


@interpreted
@MODES
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seq_len", [0, 1])
def test_no_poison_of_padding_or_of_unowned_slots_reaches_a_live_token(mode, seq_len, mapped):
    rows, tokens = PADDING[mode]
    padding = {"pad_rows": rows, "pad_tokens": tokens, "pad_seq_len": seq_len, "mapped": mapped}
    Case(mode, **RAGGED[mode], **padding, windows=(None, 4)).check()


@interpreted
@pytest.mark.parametrize("mode", [m for m in RAGGED if m is not DECODE], ids=lambda m: m.name)
def test_padding_tokens_give_zeros(mode):
    rows, tokens = PADDING[mode]
    case = Case(mode, **RAGGED[mode], pad_rows=rows, pad_tokens=tokens)
    case.poison.fill_(1)
    assert not case.run()[:, sum(case.lens) :].count_nonzero()


@interpreted
@pytest.mark.parametrize("mode", [EXTEND, TARGET_VERIFY], ids=lambda m: m.name)
def test_what_a_later_token_brings_is_not_seen_by_an_earlier_one(mode):
    # A drafted token beyond the end of a request may be computed from anything, and be NaN.
    case = Case(mode, prefixes=(5, 9), lens=(3, 3))
    for values in case.new[0].values():
        values[2] = math.nan
    got, expected = case.run()[0], case.expected()[0]
    assert got[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert (got[others].double() - expected[others]).abs().max() < 1e-5


# --- where its reads end


ENDS = {
    EXTEND: SharedReadEnds.PRE_REPLAY,
    DECODE: SharedReadEnds.IN_REPLAY,
    TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
    DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
    MIXED: SharedReadEnds.UNKNOWN,
}


@interpreted
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
        case.check_output(case.body())


@interpreted
@pytest.mark.parametrize("mode", [m for m in RAGGED if m not in PREFILL], ids=lambda m: m.name)
def test_what_a_graph_would_replay_reads_nothing_of_the_out_graph_hook(mode):
    case = Case(mode, **RAGGED[mode], **BOTH)
    with torch.inference_mode():
        case.backend.init_forward_metadata_in_graph(case.batch)
        case.check_output(case.body())


# --- what a step costs


class NoSync(TorchDispatchMode):
    """Refuses host syncs."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in func.name()
        return func(*args, **(kwargs or {}))


@interpreted
@MODES
def test_a_step_never_asks_the_device_for_a_number(mode):
    case = Case(mode, **RAGGED[mode], **BOTH)
    with NoSync():
        case.run()


@interpreted
@pytest.mark.parametrize(
    ("longest", "key"),
    [(0, 1024), (1, 1024), (1024, 1024), (1025, 4096), (4097, 5024), (9999, 5024)],
)
@MODES
def test_captured_steps_differ_by_four_times_the_length(mode, longest, key):
    case = Case(mode, prefixes=(5000,), lens=(1,), head_dim=8)
    assert case.width == 5024
    batch = attrs.evolve(case.batch, max_seq_len=longest)
    assert case.backend.graph_key(batch) == key
    view = attrs.evolve(batch, max_seq_len=key, bucket=Bucket(mode, 1, 1, key, key))
    assert case.backend.graph_key(view) == key


@interpreted
def test_static_memory_is_what_the_largest_batch_can_need():
    case = Case(DECODE, **RAGGED[DECODE], **BOTH, pad_rows=2, pad_tokens=2)
    found = {name: tuple(memory.shape) for name, memory in case.static.items()}
    assert found == {
        "triton.kv_indptr": (9,),
        "triton.kv_indices": (8 * case.width,),
        "triton.swa_indices": (8 * case.width,),
        "triton.swa_out": (8,),
        "triton.spans": (3 * 8,),
        # A row of 176 positions is not worth a split.
        "triton.partial": (0,),
        "triton.sums": (0,),
    }


# --- operators of torch


def arguments(case):
    """What a layer would hand to the operator."""
    backend, layer = case.backend, case.layers[0]
    keys, values = (case.kv[0][name].flatten(0, 1) for name in "kv")
    return (
        case.q, keys, values, case.batch.q_start, case.batch.q_row, case.batch.positions,
        case.batch.tree_mask, backend._indices, backend._spans, layer.scale, layer.window,
        4, 32, 1, 1, backend._partial, backend._sums, torch.zeros_like(case.q),
    )  # fmt: skip


@interpreted
def test_the_operators_do_what_their_schemas_say():
    case = Case(TARGET_VERIFY, prefixes=(3, 5), lens=(2, 2), tree=True, drafts=2)
    case.run()
    batch, backend = case.batch, case.backend
    plan = (
        case.shared.req_to_token, None, batch.rows, batch.seq_lens, batch.q_start, batch.q_row,
        batch.positions, batch.out_slots, 7, True, backend._indptr, backend._indices,
        backend._spans, None, None,
    )  # fmt: skip
    ops = torch.ops.warcore_backend_triton
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.plan, plan, test_utils=tests)
    torch.library.opcheck(ops.attend, arguments(case), test_utils=tests)


@interpreted
def test_a_step_of_fake_tensors_has_its_shapes():
    from torch._subclasses import FakeTensorMode

    case = Case(DECODE, **RAGGED[DECODE])
    case.run()
    given = arguments(case)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in given]
        assert torch.ops.warcore_backend_triton.attend(*fake) is None
    assert fake[-1].shape == case.q.shape


@interpreted
def test_two_threads_may_launch_at_once():
    # The interpreter alone cannot: it keeps the place in the grid in one object.
    cases = [
        Case(DECODE, **RAGGED[DECODE], seed=seed, small_tiles=True, head_dim=16) for seed in (1, 2)
    ]
    outs, ready = {}, threading.Barrier(2)

    def run(case):
        torch.set_num_threads(1)
        ready.wait()
        outs[case.seed] = [case.run() for _ in range(5)]

    threads = [threading.Thread(target=run, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for case in cases:
        assert len(outs[case.seed]) == 5
        for out in outs[case.seed]:
            case.check_output(out)


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@MODES
def test_it_computes_the_same_on_a_gpu(mode, dtype, head_dim):
    device = torch.device("cuda")
    more = {"ratio": 3, "dtype": dtype, "head_dim": head_dim, "device": device}
    Case(mode, **RAGGED[mode], **BOTH, **more).check()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", LONG, ids=lambda m: m.name)
def test_a_gpu_splits_long_sequences(mode):
    more = {"kv_heads": 1, "ratio": 4, "windows": (None, 400), "dtype": torch.bfloat16}
    case = Case(mode, **LONG[mode], **more, head_dim=128, device=torch.device("cuda"))
    case.check()
    assert case.static["triton.partial"].count_nonzero()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [m for m in RAGGED if m not in PREFILL], ids=lambda m: m.name)
def test_a_captured_step_replays_with_other_lengths(mode):
    device = torch.device("cuda")
    more = {"graph": GraphKind.UNBROKEN, "device": device, "windows": (None, 9)}
    case = Case(mode, **RAGGED[mode], ratio=3, **more)
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
    case.check_output(out)


# --- what it refuses


def test_every_reason_against_a_spec_is_given_at_once():
    given = AttentionSpec(
        q_heads=130,
        kv_heads=2,
        head_dim=257,
        dtype=torch.float64,
        kv_dtype=torch.float8_e4m3fn,
        page_size=1,
        max_context=8,
        windows=frozenset({None}),
        tree=False,
        device=torch.device("meta"),
        role="target",
    )
    reasons = Triton.why_not(given)
    assert "torch.float64 (its kernels sum in float32)" in reasons
    assert "heads of 257 (up to 256)" in reasons
    assert "65 query heads over one KV head (up to 32)" in reasons
    assert len(reasons) == 5
    odd = attrs.evolve(given, q_heads=3, dtype=torch.int8, kv_dtype=torch.int8)
    assert "3 query heads over 2 KV heads" in Triton.why_not(odd)
    assert "torch.int8 (it computes in bfloat16, float16, float32)" in Triton.why_not(odd)


def test_a_cpu_without_the_interpreter_is_refused_with_the_way_out(monkeypatch):
    import warcore_backend_triton.interpreter as where

    monkeypatch.setattr(where, "interprets", lambda: False)
    monkeypatch.setattr(where, "find_spec", lambda _: object())
    assert where.why_not(CPU) == [
        "a CPU without Triton's interpreter (set TRITON_INTERPRET=1 before Python starts)"
    ]
    monkeypatch.setattr(where, "find_spec", lambda _: None)
    assert where.why_not(CPU) == ["Triton is not installed (pip install triton)"]


def test_a_gpu_is_refused_while_the_interpreter_is_on_or_if_it_is_too_old(monkeypatch):
    import warcore_backend_triton.interpreter as where

    monkeypatch.setattr(where, "interprets", lambda: True)
    monkeypatch.setattr(where, "find_spec", lambda _: object())
    monkeypatch.setattr(where, "_capability", lambda _: (7, 5))
    assert where.why_not(torch.device("cuda")) == [
        "a GPU while Triton's interpreter is on (unset TRITON_INTERPRET)",
        "a GPU of compute capability 7.5 (8.0 or newer)",
    ]
