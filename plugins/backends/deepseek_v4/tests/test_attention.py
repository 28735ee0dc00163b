"""DeepseekV4 against dense attention, request by request, in float64."""

from __future__ import annotations

import gc
import itertools
import math
import weakref

import attrs
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warcore import (
    AttentionSpec,
    Bucket,
    ForwardBatch,
    ForwardMode,
    GraphKind,
    Layer,
    SharedReadEnds,
    testkit,
)
from warcore_backend_deepseek_v4 import DeepseekV4, Options
from warcore_backend_deepseek_v4.chunk import BLOCK, LARGE

EXTEND, MIXED = ForwardMode.EXTEND, ForwardMode.MIXED
DECODE, VERIFY, DRAFT_EXTEND = (
    ForwardMode.DECODE,
    ForwardMode.TARGET_VERIFY,
    ForwardMode.DRAFT_EXTEND,
)
PREFILL = {EXTEND, MIXED}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
CPU = torch.device("cpu")
ALWAYS, NEVER = 0, 10**6
"""Values of `sparse_above`."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tensors this small are slower on several threads, and far slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@attrs.define(slots=False)
class Case:
    """Requests with `prefixes` settled tokens and `lens` new ones.

    Memory is NaN wherever no live request has a number: in slots of nobody, in the padding page, in
    what lies behind the longest window, and in what padding tokens bring.
    """

    mode: ForwardMode
    prefixes: tuple[int, ...]
    lens: tuple[int, ...]
    windows: tuple[int | None, ...] = (None, 9)
    above: int = NEVER
    kv_heads: int = 2
    ratio: int = 1
    head_dim: int = 64
    page_size: int = 16
    dtype: torch.dtype = torch.float32
    mapped: bool = True
    """Layers with a window have a pool of their own."""
    role: str = "target"
    nodes: int = 0
    """K + 1: columns of the tree mask; 0: chains."""
    pad_rows: int = 0
    pad_tokens: int = 0
    bucket: bool = False
    """Whether it comes as the static view of a captured step."""
    graph: GraphKind = GraphKind.NONE
    device: torch.device = CPU
    seed: int = 0

    def __attrs_post_init__(self):
        self.random = torch.Generator().manual_seed(self.seed)
        self.ends = [p + n for p, n in zip(self.prefixes, self.lens, strict=True)]
        self.rows = (1 + torch.randperm(len(self.lens), generator=self.random)).tolist()
        self.spec = AttentionSpec(
            q_heads=self.kv_heads * self.ratio,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            kv_dtype=self.dtype,
            page_size=self.page_size,
            max_context=(max(self.ends) // self.page_size + 2) * self.page_size,
            windows=frozenset(self.windows),
            tree=bool(self.nodes),
            device=self.device,
            role=self.role,
        )
        self.parents = [
            [-1, *(int(torch.randint(i, (1,), generator=self.random)) for i in range(1, count))]
            for count in self.lens
        ]
        ctx = testkit.context(
            self.spec,
            DeepseekV4,
            max_batch=len(self.lens) + self.pad_rows + 1,
            layers=len(self.windows),
            graph=self.graph,
            options=Options(sparse_above=self.above),
        )
        if not self.mapped:
            ctx = attrs.evolve(ctx, shared=attrs.evolve(ctx.shared, full_to_swa=None))
        self.ctx, self.shared = ctx, ctx.shared
        if self.shared.full_to_swa is not None:
            self._close_behind_windows()
        self._fill_memory()
        self.batch = self._batch()
        self.backend = DeepseekV4(ctx)

    # ---- memory ----------------------------------------------------------------------------------

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    def kept(self, prefix):
        """The first position that the window pool still holds; its page is there as a whole."""
        longest = max(window for window in self.windows if window is not None)
        return max(prefix - longest + 1, 0) // self.page_size * self.page_size

    def _close_behind_windows(self):
        table, size = self.shared.req_to_token.cpu().long(), self.page_size
        by_page = self.shared.full_to_swa.view(-1, size)
        for row, prefix in zip(self.rows, self.prefixes, strict=True):
            behind = table[row, : self.kept(prefix) : size] // size
            by_page[behind] = torch.arange(size, dtype=torch.int32, device=self.device)

    def slots(self, row, layer):
        """The slot of each position of a row, in the pool of a layer."""
        slots = self.shared.req_to_token.cpu()[row].long()
        swa = self.shared.full_to_swa
        return slots if swa is None or layer.window is None else swa.cpu()[slots].long()

    @property
    def layers(self):
        # Not torch's default scale.
        heads, scale = (self.spec.q_heads, self.kv_heads), 1.3 / math.sqrt(self.head_dim)
        return [Layer(i, *heads, self.head_dim, scale, w) for i, w in enumerate(self.windows)]

    def _fill_memory(self):
        """What every request has settled, and what its new tokens will bring."""
        shape = self.kv_heads, self.head_dim
        self.dense = [[self.noise(2, end, *shape) for end in self.ends] for _ in self.windows]
        self.new = []
        for layer, requests in zip(self.layers, self.dense, strict=True):
            memory = self.ctx.kv[layer.index]
            for name in "kv":
                memory[name].fill_(math.nan)
            windowed = self.shared.full_to_swa is not None and layer.window is not None
            for row, prefix, own in zip(self.rows, self.prefixes, requests, strict=True):
                kept = self.kept(prefix) if windowed else 0
                at = self.slots(row, layer)[kept:prefix]
                for name, numbers in zip("kv", own, strict=True):
                    memory[name].view(-1, *shape)[at] = numbers[kept:prefix].to(self.device)
            fresh = [o[:, p:] for o, p in zip(requests, self.prefixes, strict=True)]
            poison = torch.full((2, self.pad_tokens, *shape), math.nan, dtype=self.dtype)
            self.new.append(torch.cat([*fresh, poison], 1).to(self.device))
        q = self.noise(sum(self.lens), self.spec.q_heads, self.head_dim)
        self.q = torch.cat([q, q.new_full((self.pad_tokens, *q.shape[1:]), math.nan)])

    # ---- the step --------------------------------------------------------------------------------

    def _batch(self):
        live, tokens = len(self.lens), sum(self.lens)
        q_row = [i for i, count in enumerate(self.lens) for _ in range(count)]
        starts = [*itertools.accumulate(self.lens, initial=0)]
        padded = tokens + self.pad_tokens
        if self.mode is DECODE:
            q_row += range(live, live + self.pad_rows)
            starts += range(tokens + 1, padded + 1)
        else:
            q_row += [live + self.pad_rows - 1] * self.pad_tokens
            starts += [padded] * self.pad_rows
        spans = zip(self.prefixes, self.lens, self.parents, strict=True)
        positions = [
            p + (len(ancestors(parents, i)) - 1 if self.nodes else i)
            for p, n, parents in spans
            for i in range(n)
        ]
        table = self.shared.req_to_token.cpu().long()
        spans = zip(self.rows, self.prefixes, self.ends, strict=True)
        out_slots = torch.cat([*(table[row, p:end] for row, p, end in spans)])
        nothing = torch.zeros(self.pad_tokens, dtype=torch.int64)

        def on(numbers, dtype=torch.int64):
            return torch.as_tensor(numbers, dtype=dtype).to(self.device)

        bucket = None
        if self.bucket:
            rows = live + self.pad_rows
            bucket = Bucket(self.mode, rows, padded, self.spec.max_context)
        return ForwardBatch(
            mode=self.mode,
            size=live,
            padded_size=live + self.pad_rows,
            padded_tokens=padded,
            tokens=on([0] * padded),
            rows=on([*self.rows, *[0] * self.pad_rows]),
            seq_lens=on([*self.ends, *[1] * self.pad_rows], torch.int32),
            q_start=on(starts, torch.int32),
            q_row=on(q_row),
            positions=on([*positions, *[0] * self.pad_tokens]),
            out_slots=on(torch.cat([out_slots, nothing])),
            max_seq_len=max(self.ends) if bucket is None else bucket.max_seq_len,
            extend_lens=self.lens if self.mode in PREFILL else (),
            tree_mask=on(self._tree_mask(), torch.bool) if self.nodes else None,
            bucket=bucket,
        )

    def _tree_mask(self):
        mask = torch.zeros(sum(self.lens) + self.pad_tokens, self.nodes)
        spans = [(parents, i) for parents in self.parents for i in range(len(parents))]
        for token, (parents, i) in enumerate(spans):
            mask[token, ancestors(parents, i)] = 1
        return mask

    def overwrite_shared(self):
        """What the schedule stream may do once the reads have ended."""
        self.shared.req_to_token.fill_(2**31 - 1)
        if self.shared.full_to_swa is not None:
            self.shared.full_to_swa.fill_(2**31 - 1)

    def metadata(self, *, hook=True):
        """All that comes before the layers; what the hook says, if it is called."""
        self.backend.init_forward_metadata_out_graph(self.batch)
        said = None
        if hook and self.mode is EXTEND:
            count = self.batch.padded_tokens
            said = self.backend.prepare_prefill_shared_read_snapshot(self.batch, count)
        self.backend.init_forward_metadata_in_graph(self.batch)
        return said

    def body(self):
        """Every layer's output of the live tokens, [layers, T, q_heads, D]."""
        outs = []
        for layer, new in zip(self.layers, self.new, strict=True):
            outs.append(self.backend.forward(self.q.to(self.device), *new, layer, self.batch))
            assert outs[-1].shape == self.q.shape
        return torch.stack(outs)[:, : sum(self.lens)]

    def run(self, *, hook=True):
        with torch.inference_mode():
            self.metadata(hook=hook)
            return self.body()

    # ---- what it owes ----------------------------------------------------------------------------

    def seen(self, request, i, window):
        """The positions that a request's new token `i` sees, one by one."""
        prefix, parents = self.prefixes[request], self.parents[request]
        own = ancestors(parents, i) if self.nodes else range(i + 1)
        place = {j: len(ancestors(parents, j)) - 1 if self.nodes else j for j in own}
        at = prefix + place[i]
        reach = math.inf if window is None else window
        settled = [j for j in range(prefix) if at - j < reach]
        return settled + [prefix + j for j in own if place[i] - place[j] < reach]

    def expected(self):
        outs = []
        for layer, requests in zip(self.layers, self.dense, strict=True):
            tokens = iter(self.q.double())
            for request, count in enumerate(self.lens):
                k, v = requests[request].double().repeat_interleave(self.ratio, 2)
                for i in range(count):
                    seen = self.seen(request, i, layer.window)
                    score = torch.einsum("hd,lhd->hl", next(tokens), k[seen]) * layer.scale
                    outs.append(torch.einsum("hl,lhd->hd", score.softmax(-1), v[seen]))
        return torch.stack(outs).view(len(self.windows), -1, *self.q.shape[1:])

    def holds(self, got):
        expected = self.expected()
        worst = (got.double().cpu() - expected).abs().max() / expected.abs().max()
        assert worst < TOLERANCE[self.dtype]

    def check(self, *, hook=True):
        self.holds(self.run(hook=hook))


def ancestors(parents, i):
    """`i` and all above it."""
    return [] if i < 0 else [*ancestors(parents, parents[i]), i]


STEPS = {
    # Prefixes from none over part of a page and exact pages to several pages.
    "dense": {"mode": EXTEND, "prefixes": (0, 7, 64, 131, 0), "lens": (1, 30, 5, 17, 70)},
    "mixed": {"mode": MIXED, "prefixes": (0, 7, 64, 131, 99), "lens": (20, 1, 5, 1, 1)},
    "decode": {"mode": DECODE, "prefixes": (0, 15, 16, 63, 64, 200), "lens": (1,) * 6},
    "trees": {"mode": VERIFY, "prefixes": (1, 15, 64, 130), "lens": (5,) * 4, "nodes": 5},
    "chains": {"mode": VERIFY, "prefixes": (1, 15, 64, 130), "lens": (5, 5, 2, 1)},
    "draft-extend": {"mode": DRAFT_EXTEND, "prefixes": (3, 15, 64, 130), "lens": (1, 5, 2, 3)},
}
STEPS["sparse"] = STEPS["dense"] | {"above": ALWAYS}
STEPS["sparse mixed"] = STEPS["mixed"] | {"above": ALWAYS}
STEPS["late trees"] = STEPS["trees"] | {"graph": GraphKind.BREAKABLE}
STEPS["late chains"] = STEPS["chains"] | {"graph": GraphKind.BREAKABLE}
"""Every way that a step can take."""
STEP = pytest.mark.parametrize("step", STEPS)


# ---- what it computes ----------------------------------------------------------------------------


@STEP
@pytest.mark.parametrize("ratio", [1, 3, 4, 8])
@pytest.mark.parametrize(("head_dim", "page_size"), [(64, 1), (128, 16), (64, 64)])
def test_ragged_batches_attend_to_their_own_past(step, ratio, head_dim, page_size):
    shape = {"ratio": ratio, "head_dim": head_dim, "page_size": page_size}
    Case(**STEPS[step], **shape).check()


@STEP
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_each_dtype_is_as_exact_as_it_can_be(step, dtype):
    Case(**STEPS[step], ratio=3, dtype=dtype).check()


@STEP
@pytest.mark.parametrize(
    "windows", [(None, 20), (1,), (3, None, 20), (1000, None), (16, 3, 1)], ids=str
)
@pytest.mark.parametrize("mapped", [True, False], ids=["window pool", "one pool"])
def test_layers_honour_their_own_windows(step, windows, mapped):
    Case(**STEPS[step], windows=windows, mapped=mapped, page_size=4, dtype=torch.float64).check()


@STEP
def test_a_draft_needs_no_windows(step):
    Case(**STEPS[step], windows=(None, None), role="draft", mapped=False).check()


@pytest.mark.parametrize("graph", [GraphKind.NONE, GraphKind.BREAKABLE], ids=lambda g: g.name)
@pytest.mark.parametrize("seed", range(8))
def test_a_drafted_token_sees_its_ancestors_only(seed, graph):
    trees = {"prefixes": (1, 33, 16), "lens": (8, 8, 8), "nodes": 8, "seed": seed, "graph": graph}
    Case(VERIFY, **trees, windows=(None, 2, 4), page_size=4, dtype=torch.float64).check()


@STEP
def test_verified_blocks_may_be_ragged_and_requests_without_new_tokens_disturb_nobody(step):
    given = STEPS[step] | {"lens": (2, 5, 1), "prefixes": (1, 33, 16)}
    if given["mode"] is DECODE:
        given["lens"] = (1, 1, 1)
    if given["mode"] in PREFILL:
        given["lens"] = (4, 0, 2)
    Case(**given, windows=(None, 2)).check()


PREFILLS = {
    "edges of blocks": ((0, 5, 0, 9), (BLOCK - 1, BLOCK, BLOCK + 1, 1)),
    "every size": ((3,) * 7, (1, 2, 3, 5, 9, 17, 33)),
    "long after a long past": ((500,), (3 * BLOCK + 5,)),
    "fresh": ((0,), (LARGE + BLOCK + 7,)),
    "a large block and a small one": ((0, 0), (LARGE + 1, 2)),
}


@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize("windows", [(None, 9), (1, None), (200, 70)], ids=str)
def test_blocks_cover_every_token_once_whatever_the_lengths_are(prefill, windows):
    prefixes, lens = PREFILLS[prefill]
    given = {"windows": windows, "above": ALWAYS, "kv_heads": 1, "dtype": torch.float64}
    Case(EXTEND, prefixes, lens, **given, head_dim=8).check()


PADDING = {DECODE: (3, 3)}


@STEP
@pytest.mark.parametrize("bucket", [False, True], ids=["eager", "view"])
@pytest.mark.parametrize("mapped", [True, False], ids=["window pool", "one pool"])
def test_no_poison_of_padding_or_of_unowned_slots_reaches_a_live_token(step, bucket, mapped):
    rows, tokens = PADDING.get(STEPS[step]["mode"], (2, 10))
    padding = {"pad_rows": rows, "pad_tokens": tokens, "bucket": bucket, "mapped": mapped}
    Case(**STEPS[step], **padding, windows=(None, 4)).check()


def test_a_late_lookup_has_no_room_for_the_padding_of_its_bucket():
    padding = {"pad_rows": 3, "pad_tokens": 15, "bucket": True}
    case = Case(**STEPS["late trees"], **padding)
    case.check()
    assert case.backend._lookup.rows == len(case.lens)


# ---- where its reads end -------------------------------------------------------------------------


def ends_of(graph):
    """The table of the README."""
    late = SharedReadEnds.POST_REPLAY if graph is GraphKind.BREAKABLE else SharedReadEnds.IN_REPLAY
    return {
        EXTEND: SharedReadEnds.UNKNOWN,
        DECODE: SharedReadEnds.IN_REPLAY,
        VERIFY: late,
        DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
        MIXED: SharedReadEnds.UNKNOWN,
    }


@pytest.mark.parametrize("mode", ForwardMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("graph", GraphKind, ids=lambda graph: graph.name)
@pytest.mark.parametrize("above", [ALWAYS, NEVER])
def test_what_it_declares_before_it_has_seen_a_batch(mode, graph, above):
    case = Case(**STEPS["decode"], graph=graph, above=above)
    assert case.backend.shared_read_ends(mode) is ends_of(graph)[mode]


@STEP
def test_after_its_declared_end_nothing_shared_matters(step):
    case = Case(**STEPS[step])
    end = case.backend.shared_read_ends(case.mode)
    with torch.inference_mode():
        case.backend.init_forward_metadata_out_graph(case.batch)
        if case.mode is EXTEND:
            tokens = case.batch.padded_tokens
            end = case.backend.prepare_prefill_shared_read_snapshot(case.batch, tokens)
        if end is SharedReadEnds.PRE_REPLAY:
            case.overwrite_shared()
        case.backend.init_forward_metadata_in_graph(case.batch)
        if end is SharedReadEnds.IN_REPLAY:
            case.overwrite_shared()
        case.holds(case.body())
    assert (end is SharedReadEnds.UNKNOWN) is (case.mode is MIXED)


@pytest.mark.parametrize("step", ["sparse", "sparse mixed", "late trees", "late chains"])
def test_the_first_layer_reads_for_all_of_them_what_nobody_has_read_before(step):
    case = Case(**STEPS[step], windows=(9, None, 9))
    with torch.inference_mode():
        case.metadata(hook=False)
        layer, new = case.layers[0], case.new[0]
        case.backend.forward(case.q, *new, layer, case.batch)
        case.overwrite_shared()
        case.holds(case.body())


class Watch(TorchDispatchMode):
    """Refuses host syncs, counts the operations that read the tables, knows the largest result."""

    def __init__(self, shared=None):
        super().__init__()
        tables = [] if shared is None else [shared.req_to_token, shared.full_to_swa]
        self.tables = {t.untyped_storage().data_ptr() for t in tables if t is not None}
        self.reads = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in func.name()
        given = memories((args, kwargs))
        self.reads += bool(given.keys() & self.tables)
        out = func(*args, **(kwargs or {}))
        made = memories(out)
        self.largest = max([self.largest, *(made[one] for one in made.keys() - given.keys())])
        return out


def memories(tree):
    """{address: elements} of the tensors in it."""
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return {leaf.untyped_storage().data_ptr(): leaf.numel() for leaf in leaves}


SNAPSHOT = {"prefixes": (6, 0), "lens": (5, 12), "above": 17}


def without_padding(case):
    """The live batch of a view, as the hook gets it."""
    rows, tokens = len(case.lens), sum(case.lens)
    batch = case.batch
    by_row = {"rows": rows, "seq_lens": rows, "q_start": rows + 1}
    by_token = dict.fromkeys(("tokens", "q_row", "positions", "out_slots"), tokens)
    fronts = {name: getattr(batch, name)[:n] for name, n in (by_row | by_token).items()}
    return attrs.evolve(batch, padded_size=rows, padded_tokens=tokens, bucket=None, **fronts)


@pytest.mark.parametrize(("tokens", "built"), [(17, False), (18, True), (64, True)])
def test_the_hook_builds_above_the_threshold_of_the_padded_step_only(tokens, built):
    case = Case(EXTEND, **SNAPSHOT, pad_rows=1, pad_tokens=tokens - 17, bucket=True)
    with torch.inference_mode():
        case.backend.init_forward_metadata_out_graph(case.batch)
        with Watch(case.shared) as watch:
            live = without_padding(case)
            said = case.backend.prepare_prefill_shared_read_snapshot(live, tokens)
        assert said is SharedReadEnds.PRE_REPLAY
        assert bool(watch.reads) is built
        case.overwrite_shared()
        case.backend.init_forward_metadata_in_graph(case.batch)
        case.holds(case.body())


@pytest.mark.parametrize("hook", [True, False])
def test_a_chunk_is_looked_up_once_for_all_layers(hook):
    reads = []
    for windows in ((9, None), (9, None, 9, None, 9, None)):
        case = Case(**STEPS["sparse"], windows=windows)
        with Watch(case.shared) as watch:
            case.run(hook=hook)
        reads.append(watch.reads)
    assert reads[0] == reads[1] > 0


def test_a_build_that_fails_leaves_nothing_behind():
    case = Case(**STEPS["sparse"])
    stage, case.backend.ctx = case.ctx.stage, attrs.evolve(case.ctx, stage=broken)
    with torch.inference_mode():
        case.backend.init_forward_metadata_out_graph(case.batch)
        with pytest.raises(RuntimeError, match="no memory today"):
            case.backend.prepare_prefill_shared_read_snapshot(case.batch, 10**3)
        case.backend.ctx = attrs.evolve(case.ctx, stage=stage)
        case.backend.init_forward_metadata_in_graph(case.batch)
        case.holds(case.body())
    case.check()


def broken(name, values):
    raise RuntimeError("no memory today")


@STEP
def test_a_capture_finds_nothing_that_a_warm_up_derived_and_reads_into_static_memory_only(step):
    case = Case(**STEPS[step])
    with torch.inference_mode():
        case.metadata()
        case.body()
        lookup = case.backend._lookup
        assert lookup._derived
        with Watch(case.shared) as watch:
            case.backend.init_forward_metadata_in_graph(case.batch)
        assert case.backend._lookup is lookup
        assert not lookup._derived
        in_graph = case.backend.shared_read_ends(case.mode) is SharedReadEnds.IN_REPLAY
        assert bool(watch.reads) is in_graph
        statics = {
            memory.untyped_storage().data_ptr() for memory in case.backend._statics._named.values()
        }
        if in_graph:
            assert lookup.windowed.untyped_storage().data_ptr() in statics


@STEP
def test_what_a_step_looked_up_is_let_go_with_the_next_step(step):
    case = Case(**STEPS[step])
    case.run()
    gone = weakref.ref(case.backend._lookup)
    with torch.inference_mode():
        gc.disable()
        try:
            case.backend.init_forward_metadata_out_graph(case.batch)
            assert gone() is None
        finally:
            gc.enable()


# ---- what a step costs ---------------------------------------------------------------------------


@STEP
def test_a_step_never_asks_the_device_for_a_number(step):
    case = Case(**STEPS[step])
    with Watch():
        case.run()


def test_one_long_prompt_among_short_ones_pads_nothing_to_its_length():
    lens = (600, *range(1, 32))
    case = Case(EXTEND, prefixes=(0,) * len(lens), lens=lens)
    with Watch() as watch:
        case.run()
    assert watch.largest <= sum(lens) * case.backend._length(case.batch)


def test_layers_with_a_window_load_it_and_a_block_whatever_the_context_is():
    sizes = []
    for prefix in (200, 2000):
        case = Case(EXTEND, (prefix,), (300,), windows=(50,), above=ALWAYS)
        with Watch() as watch:
            case.run()
        sizes.append(watch.largest)
    assert sizes[0] == sizes[1]
    assert sizes[0] <= 5 * (49 + BLOCK) * case.kv_heads * case.head_dim


@pytest.mark.parametrize("step", ["decode", "trees", "chains"])
def test_a_decode_loads_no_more_than_the_window(step):
    case = Case(**STEPS[step], windows=(50,))
    case.run()
    groups, width = case.backend._lookup.spans()
    assert width <= 49 + max(STEPS[step].get("nodes", 0), 1)
    assert case.backend._lookup.windowed.shape == (groups, width)


@pytest.mark.parametrize(
    ("longest", "eager", "key"),
    [(0, 8, 128), (1, 8, 128), (65, 72, 128), (129, 136, 256), (600, 600, 624), (624, 624, 624)],
)
@pytest.mark.parametrize("mode", [DECODE, VERIFY, DRAFT_EXTEND], ids=lambda mode: mode.name)
def test_eager_steps_look_up_a_multiple_of_8_and_captured_ones_their_buckets_length(
    mode, longest, eager, key
):
    case = Case(mode, prefixes=(599,), lens=(1,))
    assert case.spec.max_context == 624
    batch = attrs.evolve(case.batch, max_seq_len=longest)
    assert case.backend._length(batch) == eager
    assert case.backend.graph_key(batch) == key
    view = attrs.evolve(batch, max_seq_len=key, bucket=Bucket(mode, 1, 1, key, key))
    assert case.backend._length(view) == key
    assert case.backend.graph_key(view) == key


@pytest.mark.parametrize(
    ("graph", "lens", "above", "captured"),
    [
        (GraphKind.UNBROKEN, (5,), 5, True),
        (GraphKind.UNBROKEN, (6,), 5, False),
        (GraphKind.UNBROKEN, (2, 3), 5, False),
        (GraphKind.BREAKABLE, (5,), 5, True),
        (GraphKind.BREAKABLE, (6,), 5, True),
        (GraphKind.BREAKABLE, (2, 3), 5, True),
    ],
)
def test_a_prefill_that_the_host_cuts_is_captured_only_where_attention_is_between_the_segments(
    graph, lens, above, captured
):
    case = Case(EXTEND, (0,) * len(lens), lens, above=above, graph=graph)
    assert (case.backend.graph_key(case.batch) is not None) is captured


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@STEP
def test_it_computes_the_same_on_a_gpu(step, dtype):
    Case(**STEPS[step], ratio=3, dtype=dtype, device=torch.device("cuda")).check()


@pytest.mark.gpu
@pytest.mark.parametrize("step", STEPS)
def test_no_step_synchronizes_with_the_host(step):
    case = Case(**STEPS[step], device=torch.device("cuda"))
    case.run()
    q = case.q.to("cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            case.metadata()
            for layer, new in zip(case.layers, case.new, strict=True):
                case.backend.forward(q, *new, layer, case.batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- what it refuses -----------------------------------------------------------------------------


def test_every_reason_against_a_spec_is_given_at_once():
    case = Case(**STEPS["decode"], ratio=3)
    assert DeepseekV4.why_not(case.spec) == []
    odd = attrs.evolve(
        case.spec,
        q_heads=7,
        dtype=torch.int8,
        kv_dtype=torch.float8_e4m3fn,
        windows=frozenset({None}),
    )
    reasons = DeepseekV4.why_not(odd)
    assert len(reasons) == 4
    assert "7 query heads over 2 KV heads" in reasons
    assert any(reason.startswith("a model without sliding windows") for reason in reasons)


def test_a_threshold_is_a_number_of_tokens():
    with pytest.raises(ValueError, match="sparse_above"):
        Options(sparse_above=-1)
