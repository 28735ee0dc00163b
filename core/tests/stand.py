"""A stand: one model runner over real tables and a real KV cache, to compare steps on."""

from __future__ import annotations

import random

import attrs
import torch
from parts import SPEC, capture, runner_of
from toys import CONTEXT, LAYERS, VOCAB, ToyModel

from warcore import (
    BackendContext,
    Bucket,
    Engine,
    EngineConfig,
    ForwardBatch,
    ForwardMode,
    GraphKind,
    NoOptions,
    SamplingParams,
)
from warcore.buckets import LengthKeys
from warcore.device.host import HostDevice
from warcore.shared import SharedTables
from warcore.statics import Statics

ROWS, PAGE = 6, SPEC.page_size
PAGES = ROWS * CONTEXT // PAGE


def lengths_of(backend, mode, rows, tokens):
    """The buckets of one shape: one for each length that `backend` tells apart."""
    key = Stand(backend).backend.graph_key
    keys = LengthKeys("backend", key)
    return list(keys.buckets(Bucket(mode, rows, tokens, CONTEXT), SPEC.device))


class Stand:
    """The toy model through `backend`; with `kind`, a graph runner that has captured `buckets`.

    Every slot holds numbers: any prefix of any row can be attended to. Row 0 and slot 0, which
    padding may point at, hold nonsense. All stands begin alike.
    """

    def __init__(self, backend, kind=None, buckets=(), *, host="inline", tree=False):
        self.device = HostDevice(host)
        self.forward = self.device.stream("forward")
        self.spec = spec = attrs.evolve(SPEC, tree=tree)
        draw = torch.Generator().manual_seed(3)
        slots = PAGE + torch.randperm(ROWS * CONTEXT, generator=draw).view(ROWS, CONTEXT)
        nonsense = torch.zeros(1, CONTEXT, dtype=slots.dtype)
        self.table = torch.cat([nonsense, slots]).int()
        self.kv = [
            {
                name: torch.randn(1 + PAGES, *memory.shape, generator=draw, dtype=torch.float64)
                for name, memory in backend.kv_cache(spec).items()
            }
            for _ in LAYERS
        ]
        self.poison(float("nan"))
        statics = Statics(self.device, self.forward)
        context = BackendContext(
            spec=spec,
            max_batch=ROWS,
            max_tokens=64,
            shared=SharedTables(self.table),
            kv=self.kv,
            graph=GraphKind.NONE if kind is None else kind.kind,
            options=NoOptions(),
            static=statics.static,
            stage=statics.stage,
        )
        self.backend = self.forward.submit(backend, context).result()
        self.runner = runner_of(self.device, self.backend, model=ToyModel(torch.float64))
        if kind is not None:
            capture(self.device, self.forward, self.runner, buckets, kind, tree=tree)

    def poison(self, value):
        """What padding may read."""
        for memory in self.kv:
            for cache in memory.values():
                cache[0].fill_(value)

    def run(self, batch):
        """The logits of one step."""

        def step():
            return self.runner.execute(batch).logits.clone()

        return self.forward.submit(step).result()

    def view(self, batch):
        """`batch` in the static inputs of the bucket that holds it."""
        captures = self.runner.captures
        return self.forward.submit(captures.load, batch, captures.bucket_for(batch)).result()

    @property
    def replays(self):
        return self.runner.captures.facts()["replays"]

    def batch(self, mode, lens, prefixes, seed=0, width=None):
        """A step of requests in rows of their own with `lens` new tokens after `prefixes`.

        width: columns of a tree mask; None: no tree.
        """
        draw = random.Random(seed)
        rows = draw.sample(range(1, ROWS + 1), len(lens))
        spans = list(zip(prefixes, lens, strict=True))
        positions = [p + i for p, n in spans for i in range(n)]
        row_of = [row for row, n in zip(rows, lens, strict=True) for _ in range(n)]
        q_start = torch.tensor([0, *lens]).cumsum(0)
        return ForwardBatch(
            mode=mode,
            size=len(lens),
            padded_size=len(lens),
            padded_tokens=sum(lens),
            tokens=torch.tensor([draw.randrange(VOCAB) for _ in positions]),
            rows=torch.tensor(rows),
            seq_lens=torch.tensor([p + n for p, n in spans]).int(),
            q_start=q_start.int(),
            q_row=torch.tensor([i for i, n in enumerate(lens) for _ in range(n)]),
            positions=torch.tensor(positions),
            out_slots=self.table[row_of, positions].long(),
            max_seq_len=max(p + n for p, n in spans),
            max_q_len=max(lens),
            extend_lens=tuple(lens) if mode is ForwardMode.EXTEND else (),
            logits_at=q_start[1:] - 1 if mode is ForwardMode.EXTEND else None,
            tree_mask=None if width is None else tree_mask(lens, width, draw),
        )


def tree_mask(lens, width, draw):
    """[T, width]: each token sees itself and its ancestors in a random tree."""
    mask = torch.zeros(sum(lens), width, dtype=torch.bool)
    token = 0
    for count in lens:
        first = token
        for nth in range(count):
            if nth:
                mask[token] = mask[first + draw.randrange(nth)]
            mask[token, nth] = True
            token += 1
    return mask


class Comparison:
    """The same steps three times: replayed, eagerly with the same padding, and eagerly without."""

    def __init__(self, backend, kind, buckets, **more):
        self.replaying = Stand(backend, kind, buckets, **more)
        self.unbroken = kind.kind is GraphKind.UNBROKEN
        self.padded, self.eager = Stand(backend, **more), Stand(backend, **more)

    def check(self, batch, *, replayed):
        """Run `batch`; replayed: whether a bucket is to hold it.

        A replay has the bits of eager execution of the same shapes. Other shapes may sum in
        another order, so without padding the logits are equal up to rounding.
        """
        before = self.replaying.replays
        got = self.replaying.run(batch)
        assert self.replaying.replays - before == replayed
        # The KV that earlier steps wrote may differ by rounding too.
        torch.testing.assert_close(got, self.eager.run(batch), rtol=1e-11, atol=1e-11)
        again = batch
        if replayed:
            again = self.replaying.view(batch)
            if self.unbroken and batch.mode is ForwardMode.EXTEND:
                # Its captured attention took the padding for part of the request.
                again = attrs.evolve(again, extend_lens=(again.padded_tokens,))
        assert torch.equal(got, self.padded.run(again)[: got.shape[0]])
        live = slice(1, None)
        for one, other in zip(self.replaying.kv, self.padded.kv, strict=True):
            for name in one:
                assert torch.equal(one[name][live], other[name][live])
        return got


def check_text(runner, device):
    """An engine with the installed graph runner of that name writes what one without writes."""
    texts = []
    for chosen in ("none", runner):
        sizes = (
            {} if chosen == "none" else {"graph_prefill_buckets": (4, 16), "graph_buckets": (1, 3)}
        )
        config = EngineConfig(
            model="random:tiny",
            backend="torch_native",
            graph_runner=chosen,
            dtype="float64",
            device=device,
            max_running_requests=4,
            **sizes,
        )
        with Engine(config) as engine:
            # One at a time, all together, and some that end before others.
            outputs = engine.generate("abc", SamplingParams(max_new_tokens=9))
            lengths = [
                SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (3, 30, 12, 7, 20)
            ]
            outputs += engine.generate(["abc", "a", "abcdefghi", "fgh " * 5, "xy"], lengths)
            texts.append([output.output_ids for output in outputs])
            assert all(output.error is None for output in outputs)
            if chosen != "none":
                assert engine.stats()["graphs"]["replays"] > 10
    assert texts[0] == texts[1]
