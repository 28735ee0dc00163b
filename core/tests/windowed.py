"""Toys with sliding windows: a model of both kinds of layers, and backends that use the map."""

from __future__ import annotations

import attrs
import torch
from toys import DIM, HEADS, INFO, PREFILLS, RowMajor, Toy, ToyModel

from warcore import Output, SharedReadEnds

WINDOW = 6
LAYERS = tuple(
    attrs.evolve(layer, window=window)
    for layer, window in zip(INFO.layers, (WINDOW, None), strict=True)
)


class WindowModel(ToyModel):
    """The toy model, whose first layer sees the newest `WINDOW` tokens."""

    def __init__(self, dtype):
        super().__init__(dtype)
        self.info = attrs.evolve(INFO, layers=LAYERS)

    def forward(self, batch, attend, hidden_layers=()):
        x = self.embed[batch.tokens] + self.place[batch.positions]
        for layer, qkv in zip(LAYERS, self.qkv, strict=True):
            q, k, v = (x @ qkv).view(-1, 3, HEADS, DIM).unbind(1)
            x = x + attend(q, k, v, layer).flatten(1)
        if batch.logits_at is not None:
            x = x[batch.logits_at]
        return Output(x @ self.head)


class Windowed(Toy):
    """`EngineConfig(model=Windowed)`."""

    @classmethod
    def describe(cls, ref, options):
        return attrs.evolve(INFO, layers=LAYERS)

    @classmethod
    def load(cls, ref, ctx):
        return WindowModel(ctx.dtype)


class Mapped(RowMajor):
    """Translates the rows that it gathers, where it gathers them; without a map it needs none.

    Drafted tokens of a verify see what the tree mask lets them see.
    """

    window_pool = True

    def gather(self, batch):
        super().gather(batch)
        self.translate(batch)

    def translate(self, batch):
        """Both what was gathered and the places to write, in the window pool."""
        full_to_swa = self.ctx.shared.full_to_swa
        if full_to_swa is not None:
            self.swa_slots(batch).copy_(full_to_swa[self.slots(batch)])
            self.swa_out(batch).copy_(full_to_swa[batch.out_slots])

    def swa_slots(self, batch):
        size = self.ctx.max_batch, self.ctx.shared.req_to_token.shape[1]
        return self.ctx.static("toy.swa_slots", size, torch.int64)[: batch.padded_size]

    def swa_out(self, batch):
        out = self.ctx.static("toy.swa_out", (self.ctx.max_tokens,), torch.int64)
        return out[: batch.padded_tokens]

    def forward(self, q, k, v, layer, batch):
        table, out = self.slots(batch), batch.out_slots
        if layer.window is not None and self.ctx.shared.full_to_swa is not None:
            table, out = self.swa_slots(batch), self.swa_out(batch)
        cache = self.ctx.kv[layer.index]
        keys, values = (cache[name].flatten(0, 1) for name in "kv")
        keys[out], values[out] = k, v
        slots = table[batch.q_row]
        scores = torch.einsum("thd,tlhd->thl", q, keys[slots]) * layer.scale
        scores.masked_fill_(~self.seen(batch, slots.shape[1], layer.window)[:, None], -torch.inf)
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), values[slots].nan_to_num(0))

    @staticmethod
    def seen(batch, width, window):
        """[T, width] bool: which positions each token attends to."""
        at, depth = torch.arange(width), torch.arange(width).expand(batch.padded_tokens, width)
        seen = at <= batch.positions[:, None]
        if batch.tree_mask is not None:
            drafts = batch.tree_mask.shape[1]
            first = (batch.seq_lens - drafts).long()[batch.q_row, None]
            nth = (at - first).clamp(0, drafts - 1)
            drafted = (at >= first) & (at < first + drafts)
            seen = (at < first) | (drafted & batch.tree_mask.gather(1, nth))
            depth = torch.where(
                drafted, batch.positions[batch.q_start[batch.q_row, None] + nth], at
            )
        return seen if window is None else seen & (batch.positions[:, None] - depth < window)


class Unmapped(Mapped):
    """The same with one pool for all layers: what others are compared with."""

    window_pool = False


class MappedInside(Mapped):
    """Reads in the graph's metadata; votes as the base class does."""

    def shared_read_ends(self, forward_mode):
        return super(RowMajor, self).shared_read_ends(forward_mode)

    def init_forward_metadata_out_graph(self, batch):
        pass

    def init_forward_metadata_in_graph(self, batch):
        self.gather(batch)


class MappedLate(Mapped):
    """Reads in the body, and says so."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.POST_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        pass

    def forward(self, q, k, v, layer, batch):
        self.gather(batch)
        return super().forward(q, k, v, layer, batch)


class LateMap(Mapped):
    """Gathers its rows in time, and translates them in the body: it forgot the other table."""

    def gather(self, batch):
        RowMajor.gather(self, batch)

    def forward(self, q, k, v, layer, batch):
        self.translate(batch)
        return super().forward(q, k, v, layer, batch)


class LateMapInPrefills(LateMap):
    """The same in prefills alone."""

    def gather(self, batch):
        super().gather(batch)
        if batch.mode not in PREFILLS:
            self.translate(batch)

    def forward(self, q, k, v, layer, batch):
        if batch.mode in PREFILLS:
            self.translate(batch)
        return Mapped.forward(self, q, k, v, layer, batch)
