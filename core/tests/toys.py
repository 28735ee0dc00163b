"""Small real plugins for tests of the core: a model whose output depends on all it attended to.

The core must not need any installed plugin for its own tests. `ToyModel` is a two-layer attention
model over seeded weights, `RowMajor` a whole backend, `Replaying` a whole graph runner.
"""

from __future__ import annotations

import torch

from warcore import (
    AttentionBackend,
    Draft,
    ForwardMode,
    GraphRunner,
    Layer,
    Model,
    ModelFamily,
    ModelInfo,
    Output,
    SharedReadEnds,
    SpecAlgorithm,
)

VOCAB, HEADS, DIM, CONTEXT = 64, 2, 8, 64
LAYERS = tuple(Layer(i, HEADS, HEADS, DIM, DIM**-0.5) for i in range(2))
EOS = 63


class ToyTokenizer:
    """One token per character; token 63 ends an answer."""

    eos_ids = frozenset({EOS})
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."

    def encode(self, text):
        return [self.alphabet.index(c) for c in text]

    def decode(self, ids):
        return "".join(self.alphabet[i] for i in ids if i != EOS)

    def chat(self, prompt, system):
        return self.encode((system or "") + prompt)


class ToyModel(Model):
    def __init__(self, dtype):
        self.info = INFO
        self.tokenizer = ToyTokenizer()
        random = torch.Generator().manual_seed(7)

        def weight(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

        width = HEADS * DIM
        self.embed, self.place = weight(VOCAB, width), weight(CONTEXT, width)
        self.qkv = [weight(width, 3 * width) / width**0.5 for _ in LAYERS]
        self.head = weight(width, VOCAB)

    def forward(self, batch, attend, hidden_layers=()):
        x = self.embed[batch.tokens] + self.place[batch.positions]
        for layer, qkv in zip(LAYERS, self.qkv, strict=True):
            q, k, v = (x @ qkv).view(-1, 3, HEADS, DIM).unbind(1)
            x = x + attend(q, k, v, layer).flatten(1)
        if batch.logits_at is not None:
            x = x[batch.logits_at]
        return Output(x @ self.head)


class Toy(ModelFamily):
    """`EngineConfig(model=Toy)`."""

    @classmethod
    def recognises(cls, ref):
        return "toy" if ref in {"toy", "Toy"} else None

    @classmethod
    def describe(cls, ref, options):
        return INFO

    @classmethod
    def load(cls, ref, ctx):
        return ToyModel(ctx.dtype)


INFO = ModelInfo("toy", LAYERS, VOCAB, HEADS * DIM, CONTEXT, 10_000)


class RowMajor(AttentionBackend):
    """Gathers its rows out of the graph; nothing is read later, in any mode.

    All that it remembers of a step is in static memory: a replay finds it there.
    """

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        self.gather(batch)

    def slots(self, batch):
        """[B, context], what was gathered for `batch`."""
        size = self.ctx.max_batch, self.ctx.shared.req_to_token.shape[1]
        return self.ctx.static("toy.slots", size, torch.int64)[: batch.padded_size]

    def gather(self, batch):
        self.slots(batch).copy_(self.ctx.shared.req_to_token.index_select(0, batch.rows))

    def forward(self, q, k, v, layer, batch):
        cache = self.ctx.kv[layer.index]
        keys, values = (cache[name].flatten(0, 1) for name in "kv")
        keys[batch.out_slots], values[batch.out_slots] = k, v
        slots = self.slots(batch)[batch.q_row]
        scores = torch.einsum("thd,tlhd->thl", q, keys[slots]) * layer.scale
        seen = torch.arange(slots.shape[1]) <= batch.positions[:, None]
        scores.masked_fill_(~seen[:, None], -torch.inf)
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), values[slots].nan_to_num(0))


class Late(RowMajor):
    """Reads in the body, and says so."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.POST_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        pass

    def forward(self, q, k, v, layer, batch):
        self.gather(batch)
        return super().forward(q, k, v, layer, batch)


class Inside(RowMajor):
    """Reads in the graph's metadata; votes as the base class does."""

    def shared_read_ends(self, forward_mode):
        return AttentionBackend.shared_read_ends(self, forward_mode)

    def init_forward_metadata_out_graph(self, batch):
        pass

    def init_forward_metadata_in_graph(self, batch):
        self.gather(batch)


class Replaying(GraphRunner):
    """The smallest graph runner: one graph for each step that it is given."""

    modes = frozenset(ForwardMode) - {ForwardMode.MIXED}

    def __init__(self, ctx):
        super().__init__(ctx)
        self.captured = {}

    def capture(self, bucket, view):
        graph = self.ctx.graph()
        self.captured[bucket] = graph, graph.capture(lambda: self.ctx.step(view, self.ctx.marker))

    def replay(self, bucket):
        graph, output = self.captured[bucket]
        graph.replay()
        return output


class Repeating(SpecAlgorithm):
    """The smallest algorithm: proposes the newest token again and again."""

    later_prefill_reader = False

    def draft(self, batch):
        return Draft(batch.tokens[:, None].repeat(1, self.ctx.num_tokens))


PREFILLS = (ForwardMode.EXTEND, ForwardMode.MIXED)
