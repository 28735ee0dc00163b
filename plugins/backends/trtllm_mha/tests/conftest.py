"""Steps over a paged cache whose every unowned slot is NaN, and dense attention in float64."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import attrs
import pytest
import torch

from warcore import (
    AttentionSpec,
    BackendContext,
    ForwardBatch,
    ForwardMode,
    GraphKind,
    Layer,
    SharedReadEnds,
)
from warcore_backend_trtllm_mha import TrtllmMha

CPU = torch.device("cpu")
I32, I64 = torch.int32, torch.int64
EXTEND, MIXED, DECODE, TARGET_VERIFY, DRAFT_EXTEND = (
    ForwardMode.EXTEND,
    ForwardMode.MIXED,
    ForwardMode.DECODE,
    ForwardMode.TARGET_VERIFY,
    ForwardMode.DRAFT_EXTEND,
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tensors this small are slower on several threads, and far slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def paged():
    """The class of steps."""
    return Paged


@attrs.define
class Shared:
    """The live tables, as a test owns them."""

    req_to_token: torch.Tensor
    full_to_swa: torch.Tensor | None = None


@attrs.define(slots=False)
class Paged:
    """Requests with `prefixes` settled tokens and `lens` new ones, in pages in no order.

    NaN is everything that no live request owns: the rest of their last pages, other pages, page 0,
    and what padding tokens bring.
    """

    mode: ForwardMode
    prefixes: tuple[int, ...]
    lens: tuple[int, ...]
    kernels: str = "torch"
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

    TOLERANCE: ClassVar = {
        torch.float64: 1e-12,
        torch.float32: 1e-5,
        torch.float16: 4e-3,
        torch.bfloat16: 2e-2,
    }
    PREFILL: ClassVar = (EXTEND, MIXED)
    RAGGED: ClassVar = {
        # Prefixes from none over part of a page and exact pages to several pages.
        EXTEND: {"prefixes": (0, 7, 64, 131, 0), "lens": (1, 30, 5, 17, 20)},
        MIXED: {"prefixes": (0, 7, 64, 131, 99), "lens": (20, 1, 5, 1, 1)},
        DECODE: {"prefixes": (0, 15, 16, 63, 64, 200), "lens": (1,) * 6},
        TARGET_VERIFY: {"prefixes": (1, 15, 64, 130), "lens": (5,) * 4, "tree": True},
        DRAFT_EXTEND: {"prefixes": (3, 15, 64, 130), "lens": (1, 5, 2, 3)},
    }
    PADDING: ClassVar = {
        EXTEND: (2, 9),
        MIXED: (2, 9),
        DECODE: (3, 3),
        TARGET_VERIFY: (2, 10),
        DRAFT_EXTEND: (2, 6),
    }
    """Rows and tokens."""

    @classmethod
    def ragged(cls, mode, *, padded=False, **shape):
        """A batch of differing lengths; padded: as it is in a captured step."""
        rows, tokens = cls.PADDING[mode] if padded else (0, 0)
        return cls(mode, **{**cls.RAGGED[mode], "pad_rows": rows, "pad_tokens": tokens, **shape})

    def __attrs_post_init__(self):
        self.random = torch.Generator().manual_seed(self.seed)
        self.seq_lens = [p + n for p, n in zip(self.prefixes, self.lens, strict=True)]
        self.width = (-(-max(self.seq_lens) // self.page_size) + 1) * self.page_size
        self.slots = self._own_pages()
        live = len(self.lens)
        self.rows = (1 + torch.randperm(live + 3, generator=self.random)[:live]).tolist()
        # Beyond its end a row holds what was left there: slots that others may own by now.
        table = torch.randint(self.pool, (live + 4, self.width), generator=self.random).int()
        table[0] = 0
        for row, slots in zip(self.rows, self.slots, strict=True):
            table[row, : len(slots)] = slots.int()
        swa = self._map().to(self.device) if self.mapped else None
        self.shared = Shared(table.to(self.device), swa)
        self._draw()
        self.batch = self._batch()
        self.static = {}
        self.backend = TrtllmMha(self._context())
        self._fill_memory()

    @property
    def spec(self):
        return AttentionSpec(
            q_heads=self.kv_heads * self.ratio,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            kv_dtype=self.dtype,
            page_size=self.page_size,
            max_context=self.width,
            windows=frozenset(self.windows),
            tree=self.tree,
            device=self.device,
            role="target",
        )

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

    # --- the memory

    def _own_pages(self):
        counts = [-(-n // self.page_size) for n in self.seq_lens]
        pages = (1 + torch.randperm(sum(counts) + 2, generator=self.random)).tolist()
        self.pool = (len(pages) + 1) * self.page_size
        slots = []
        for count, length in zip(counts, self.seq_lens, strict=True):
            own = torch.tensor([pages.pop() for _ in range(count)]) * self.page_size
            slots.append((own[:, None] + torch.arange(self.page_size)).flatten()[:length])
        return slots

    def kept(self, prefix):
        """The first position that the window pool still holds; its page is there as a whole."""
        longest = max(window for window in self.windows if window is not None)
        return max(prefix - longest + 1, 0) // self.page_size * self.page_size

    def _map(self):
        """Live pages lead to pages in another order, those behind the windows to page 0."""
        pages = self.pool // self.page_size
        led = torch.cat([torch.zeros(1), 1 + torch.randperm(pages - 1, generator=self.random)])
        for slots, prefix in zip(self.slots, self.prefixes, strict=True):
            led[slots[: self.kept(prefix)] // self.page_size] = 0
        return (led[:, None] * self.page_size + torch.arange(self.page_size)).flatten().int()

    def _draw(self):
        """Queries, and of each layer the keys and values of all positions, and of the new ones."""
        heads, size = (self.kv_heads, self.head_dim), (self.page_size, self.kv_heads, self.head_dim)
        nothing = {"dtype": self.dtype, "device": self.device}
        self.kv, self.dense, self.new = [], [], []
        for _ in self.windows:
            pages = (self.pool // self.page_size, *size)
            self.kv.append({n: torch.full(pages, math.nan, **nothing) for n in "kv"})
            self.dense.append([{n: self.noise(s, *heads) for n in "kv"} for s in self.seq_lens])
            poison = torch.full((self.pad_tokens, *heads), math.nan, dtype=self.dtype)
            fresh = zip(self.dense[-1], self.prefixes, strict=True)
            parts = [{n: own[n][prefix:] for n in "kv"} for own, prefix in fresh]
            self.new.append({n: torch.cat([*(x[n] for x in parts), poison]) for n in "kv"})
        self.q = self.noise(sum(self.lens), self.kv_heads * self.ratio, self.head_dim)
        self.poison = torch.full((self.pad_tokens, *self.q.shape[1:]), math.nan, dtype=self.dtype)

    def _fill_memory(self):
        """What earlier steps have written."""
        for window, memory, dense in zip(self.windows, self.kv, self.dense, strict=True):
            for slots, own, prefix in zip(self.slots, dense, self.prefixes, strict=True):
                kept, at = 0, slots
                if self.mapped and window is not None:
                    kept, at = self.kept(prefix), self.shared.full_to_swa.cpu()[slots].long()
                for name, values in memory.items():
                    written = own[name][kept:prefix].to(self.device)
                    values.flatten(0, 1)[at[kept:prefix].to(self.device)] = written

    # --- the step

    def _positions(self):
        """Places in the sequence; in a tree, depths below the settled prefix."""
        spans = list(zip(self.prefixes, self.lens, strict=True))
        if not self.tree:
            return torch.cat([torch.arange(p, p + n) for p, n in spans])
        self.parents = [
            [-1, *(int(torch.randint(i, (1,), generator=self.random)) for i in range(1, n))][:n]
            for n in self.lens
        ]
        return torch.tensor(
            [
                p + len(ancestors(parents, i)) - 1
                for (p, n), parents in zip(spans, self.parents, strict=True)
                for i in range(n)
            ]
        )

    def _tree_mask(self):
        mask = torch.zeros(sum(self.lens) + self.pad_tokens, self.drafts, dtype=torch.bool)
        nodes = [(parents, i) for parents in self.parents for i in range(len(parents))]
        for token, (parents, i) in enumerate(nodes):
            mask[token, ancestors(parents, i)] = True
        return mask.to(self.device)

    def _batch(self):
        live, tokens, pad = len(self.lens), sum(self.lens), [0] * self.pad_tokens
        start = list(itertools.accumulate(self.lens, initial=0))
        q_row = [i for i, n in enumerate(self.lens) for _ in range(n)]
        if self.mode is DECODE:
            start += range(tokens + 1, tokens + self.pad_tokens + 1)
            q_row += range(live, live + self.pad_tokens)
        else:
            # Padding rows have no tokens, and padding tokens no row.
            start += [tokens] * self.pad_rows
            q_row += pad
        fresh = zip(self.slots, self.prefixes, strict=True)
        positions = torch.cat([self._positions(), torch.tensor(pad, dtype=I64)])
        out_slots = torch.cat([*(s[p:] for s, p in fresh), torch.tensor(pad, dtype=I64)])
        seq_lens = self.seq_lens + [self.pad_seq_len] * self.pad_rows
        given = {"device": self.device}
        return ForwardBatch(
            mode=self.mode,
            size=live,
            padded_size=live + self.pad_rows,
            padded_tokens=tokens + self.pad_tokens,
            tokens=torch.zeros(tokens + self.pad_tokens, dtype=I64, **given),
            rows=torch.tensor(self.rows + [0] * self.pad_rows, dtype=I64, **given),
            seq_lens=torch.tensor(seq_lens, dtype=I32, **given),
            q_start=torch.tensor(start, dtype=I32, **given),
            q_row=torch.tensor(q_row, dtype=I64, **given),
            positions=positions.to(self.device),
            out_slots=out_slots.to(self.device),
            max_seq_len=max(self.seq_lens),
            max_q_len=max(self.lens),
            extend_lens=self.lens if self.mode in self.PREFILL else (),
            tree_mask=self._tree_mask() if self.tree else None,
        )

    def _context(self):
        def take(name, shape, dtype):
            return self.static.setdefault(name, torch.zeros(shape, dtype=dtype, device=self.device))

        return BackendContext(
            spec=self.spec,
            max_batch=self.batch.padded_size,
            max_tokens=self.batch.padded_tokens,
            shared=self.shared,
            kv=self.kv,
            graph=self.graph,
            options=TrtllmMha.Options(self.kernels),
            static=take,
            stage=None,
        )

    def overwrite_shared(self):
        """What the schedule stream may do once the reads have ended."""
        self.shared.req_to_token.fill_(2**31 - 1)
        if self.mapped:
            self.shared.full_to_swa.fill_(2**31 - 1)

    def body(self):
        """Every layer's output of all tokens, [layers, T, q_heads, D]."""
        q = torch.cat([self.q, self.poison]).to(self.device)
        outs = []
        for layer, new in zip(self.layers, self.new, strict=True):
            k, v = (new[name].to(self.device) for name in "kv")
            outs.append(self.backend.forward(q, k, v, layer, self.batch))
            assert outs[-1].shape == q.shape
        return torch.stack(outs)

    def run(self):
        with torch.inference_mode():
            self.backend.init_forward_metadata_out_graph(self.batch)
            self.backend.init_forward_metadata_in_graph(self.batch)
            return self.body()

    # --- what is owed

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
        nodes = [(request, i) for request, n in enumerate(self.lens) for i in range(n)]
        for layer, dense in zip(self.layers, self.dense, strict=True):
            for (request, i), q in zip(nodes, self.q.double(), strict=True):
                seen = self.seen(request, i, layer.window)
                k, v = (
                    dense[request][n][seen].double().repeat_interleave(self.ratio, 1) for n in "kv"
                )
                score = torch.einsum("hd,lhd->hl", q, k) * layer.scale
                outs.append(torch.einsum("hl,lhd->hd", score.softmax(-1), v))
        return torch.stack(outs).view(len(self.windows), -1, *self.q.shape[1:])

    def check(self, got=None):
        """AssertionError unless `got`, or what a run gives, is what is owed to live tokens."""
        got = self.run() if got is None else got
        expected = self.expected()
        difference = got[:, : sum(self.lens)].double().cpu() - expected
        assert difference.abs().max() / expected.abs().max() < self.TOLERANCE[self.dtype]

    ENDS: ClassVar = {
        EXTEND: SharedReadEnds.PRE_REPLAY,
        DECODE: SharedReadEnds.IN_REPLAY,
        TARGET_VERIFY: SharedReadEnds.IN_REPLAY,
        DRAFT_EXTEND: SharedReadEnds.IN_REPLAY,
        MIXED: SharedReadEnds.UNKNOWN,
    }


def ancestors(parents, i):
    """`i` and all above it."""
    return [] if i < 0 else [*ancestors(parents, parents[i]), i]
