"""Backends that keep the contract, and the pieces of them that the wrong ones replace."""

from __future__ import annotations

import torch

from warcore import AttentionBackend, ForwardMode, GraphKind, SharedReadEnds


class Right(AttentionBackend):
    """Copies its rows before the replay; nothing shared is read later, in any mode."""

    @classmethod
    def why_not(cls, spec):
        return ["windows or trees"] if spec.tree or spec.windows != {None} else []

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        self.gather(batch)

    def slots(self, batch):
        """[B, context], what was gathered: static memory, so that replays find it."""
        size = self.ctx.max_batch, self.ctx.shared.req_to_token.shape[1]
        return self.ctx.static("slots", size, torch.int64)[: batch.padded_size]

    def gather(self, batch):
        self.slots(batch).copy_(self.ctx.shared.req_to_token.index_select(0, batch.rows))

    def forward(self, q, k, v, layer, batch):
        keys, values = (self.ctx.kv[layer.index][name].flatten(0, 1) for name in "kv")
        self.store(keys, values, k, v, batch)
        slots = self.slots(batch)[batch.q_row]
        seen = self.seen(slots, layer, batch)
        # What a token does not see may be NaN: it looks at its own in its place.
        slots = torch.where(seen, slots, batch.out_slots[:, None])
        return self.attend(q, keys[slots], values[slots], seen, layer)

    def store(self, keys, values, k, v, batch):
        keys[batch.out_slots], values[batch.out_slots] = k, v

    def seen(self, slots, layer, batch):
        """[T, context]"""
        return torch.arange(slots.shape[1], device=slots.device) <= batch.positions[:, None]

    def attend(self, q, k, v, seen, layer):
        """k, v [T, context, kv_heads, D]; the output as wide as q."""
        wide = torch.promote_types(q.dtype, torch.float32)
        k, v = (self.spread(each, layer).to(wide) for each in (k, v))
        scores = torch.einsum("thd,tlhd->thl", q.to(wide), k) * layer.scale
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), v).to(q.dtype)

    def spread(self, each, layer):
        """A KV head for each query head."""
        return each.repeat_interleave(layer.q_heads // layer.kv_heads, 2)


class InGraph(Right):
    """Copies its rows in the graph, and says so."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.IN_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        pass

    def init_forward_metadata_in_graph(self, batch):
        self.gather(batch)


class InLayers(Right):
    """Copies its rows in each layer, and says so."""

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.POST_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        pass

    def forward(self, q, k, v, layer, batch):
        self.gather(batch)
        return super().forward(q, k, v, layer, batch)


class Windowed(Right):
    """Serves windows and trees too."""

    @classmethod
    def why_not(cls, spec):
        return []

    def seen(self, slots, layer, batch):
        at = torch.arange(slots.shape[1], device=slots.device)
        seen = super().seen(slots, layer, batch)
        if batch.tree_mask is not None:
            seen = self.branch(at, batch)
        if layer.window is None:
            return seen
        return seen & (at > batch.positions[:, None] - layer.window)

    def branch(self, at, batch):
        """All before the drafts, and of the drafts those that the mask shows."""
        width = batch.tree_mask.shape[1]
        nth = at - (batch.seq_lens[batch.q_row] - width)[:, None]
        drafted = batch.tree_mask.gather(1, nth.clamp(0, width - 1))
        return (nth < 0) | (drafted & (nth < width))


class Pooled(Windowed):
    """Finds layers with a window in their own pool, and translates where it gathers."""

    window_pool = True

    def gather(self, batch):
        super().gather(batch)
        self.translate(batch)

    def translate(self, batch):
        full_to_swa = self.ctx.shared.full_to_swa
        if full_to_swa is not None:
            slots, out = self.swa(batch)
            slots.copy_(full_to_swa[self.slots(batch)])
            out.copy_(full_to_swa[batch.out_slots])

    def swa(self, batch):
        """[B, context] and [T], in the window pool."""
        size = self.ctx.max_batch, self.ctx.shared.req_to_token.shape[1]
        slots = self.ctx.static("swa.slots", size, torch.int64)
        out = self.ctx.static("swa.out", (self.ctx.max_tokens,), torch.int64)
        return slots[: batch.padded_size], out[: batch.padded_tokens]

    def forward(self, q, k, v, layer, batch):
        if layer.window is None or self.ctx.shared.full_to_swa is None:
            return super().forward(q, k, v, layer, batch)
        keys, values = (self.ctx.kv[layer.index][name].flatten(0, 1) for name in "kv")
        table, out = self.swa(batch)
        keys[out], values[out] = k, v
        slots = table[batch.q_row]
        seen = self.seen(slots, layer, batch)
        slots = torch.where(seen, slots, out[:, None])
        return self.attend(q, keys[slots], values[slots], seen, layer)


class Snapshot(Right):
    """Copies the rows of a prefill in its first layer, or sooner if its snapshot hook is called."""

    ready = False

    def graph_key(self, batch):
        unbroken = self.ctx.graph is GraphKind.UNBROKEN
        return None if unbroken and batch.mode is ForwardMode.EXTEND else 0

    def shared_read_ends(self, forward_mode):
        extend = forward_mode is ForwardMode.EXTEND
        return SharedReadEnds.UNKNOWN if extend else SharedReadEnds.PRE_REPLAY

    def init_forward_metadata_out_graph(self, batch):
        self.ready = False
        if batch.mode is not ForwardMode.EXTEND:
            self.gather(batch)

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        self.gather(forward_batch)
        self.ready = True
        return SharedReadEnds.PRE_REPLAY

    def forward(self, q, k, v, layer, batch):
        if batch.mode is ForwardMode.EXTEND and not self.ready:
            self.gather(batch)
            self.ready = True
        return super().forward(q, k, v, layer, batch)


class Composite(Right):
    """Hands prefills to one backend, and all other steps to another."""

    kinds = InLayers, InGraph

    def __init__(self, ctx):
        super().__init__(ctx)
        self.children = [kind(ctx) for kind in self.kinds]

    def child(self, mode):
        return self.children[0 if mode.is_prefill else 1]

    def shared_read_ends(self, forward_mode):
        return self.child(forward_mode).shared_read_ends(forward_mode)

    def init_forward_metadata_out_graph(self, batch):
        self.child(batch.mode).init_forward_metadata_out_graph(batch)

    def init_forward_metadata_in_graph(self, batch):
        self.child(batch.mode).init_forward_metadata_in_graph(batch)

    def forward(self, q, k, v, layer, batch):
        return self.child(batch.mode).forward(q, k, v, layer, batch)
