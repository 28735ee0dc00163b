"""Small real speculative algorithms: from one that is always right to one that never is."""

from __future__ import annotations

import torch
from toys import VOCAB, RowMajor, ToyModel

from warcore import Draft, SharedReadEnds, SpecAlgorithm, Stager, TensorSpec


class Wrong(SpecAlgorithm):
    """Proposes one token again and again; it is hardly ever the right one."""

    later_prefill_reader = False
    tree = True

    def draft(self, batch):
        return Draft(torch.full((batch.size, self.ctx.num_tokens), 5))


class Drawn(Wrong):
    """Draws uniformly, and says from what."""

    def draft(self, batch):
        shape = batch.size, self.ctx.num_tokens
        draws = torch.Generator().manual_seed(int(batch.positions.sum()))
        tokens = torch.randint(0, VOCAB, shape, generator=draws)
        return Draft(tokens, probs=torch.full((*shape, VOCAB), 1 / VOCAB))


class Ragged(Wrong):
    """Means fewer of its tokens the further a request has come, and none at times."""

    def draft(self, batch):
        lengths = batch.positions % (self.ctx.num_tokens + 1)
        return Draft(super().draft(batch).tokens, lengths=lengths)


class Model(SpecAlgorithm):
    """The target drafts for itself, in a runner of its own: right in every token."""

    later_prefill_reader = True

    def __init__(self, ctx):
        super().__init__(ctx)
        self.runner = ctx.make_runner(self.model(ctx))

    @staticmethod
    def model(ctx):
        return ToyModel(ctx.spec.dtype)

    def draft(self, batch):
        tokens = []
        for _ in range(self.ctx.num_tokens):
            if tokens:
                batch = batch.after(tokens[-1])
            tokens.append(self.runner.execute(batch).logits.argmax(-1))
        return Draft(torch.stack(tokens, 1))

    def draft_extend(self, batch, accepted):
        self.runner.execute(batch)

    def last_shared_read_runner(self, forward_batch):
        return self.runner


class Half(Model):
    """A draft model that is right in about every other token."""

    @staticmethod
    def model(ctx):
        model = ToyModel(ctx.spec.dtype)
        noise = torch.Generator().manual_seed(1)
        model.head = model.head + 0.6 * torch.randn(
            model.head.shape, generator=noise, dtype=torch.float64
        ).to(model.head.dtype)
        return model


class Tree(Half):
    """Its model's best and second best at each position; the second ones have no children."""

    tree = True

    def draft(self, batch):
        tokens, parents = [], []
        spine = 0
        while len(tokens) < self.ctx.num_tokens:
            best = self.runner.execute(batch).logits.topk(2).indices
            for rank in range(min(2, self.ctx.num_tokens - len(tokens))):
                tokens.append(best[:, rank])
                parents.append(torch.full_like(best[:, 0], spine))
            spine = len(tokens) if rank == 0 else len(tokens) - 1
            if len(tokens) < self.ctx.num_tokens:
                batch = batch.after(best[:, 0])
        return Draft(torch.stack(tokens, 1), parents=torch.stack(parents, 1))


class Remembers(Wrong):
    """Proposes what followed the newest token when the request last had it: relay state only."""

    @classmethod
    def relay(cls, spec):
        return {"after": TensorSpec((VOCAB,), torch.int64)}

    def draft(self, batch):
        after = self.ctx.relay["after"]
        token, tokens = batch.tokens, []
        for _ in range(self.ctx.num_tokens):
            token = after[batch.rows, token]
            tokens.append(token)
        return Draft(torch.stack(tokens, 1))

    def draft_extend(self, batch, accepted):
        after = self.ctx.relay["after"]
        rows = batch.rows[batch.q_row]
        following = torch.cat((batch.tokens[1:], batch.tokens[-1:]))
        last = (batch.q_start[1:] - 1).long()
        if accepted.tokens.shape[1] == 1:
            following = following.index_copy(0, last, accepted.tokens[:, 0])
        else:
            following = accepted.tokens.flatten()
        after[rows, batch.tokens] = following


class WithTrees(RowMajor):
    """Sees of the drafted tokens what the mask lets it see."""

    def forward(self, q, k, v, layer, batch):
        if batch.tree_mask is None:
            return super().forward(q, k, v, layer, batch)
        cache = self.ctx.kv[layer.index]
        keys, values = (cache[name].flatten(0, 1) for name in "kv")
        keys[batch.out_slots], values[batch.out_slots] = k, v
        slots = self.slots(batch)[batch.q_row]
        width = batch.tree_mask.shape[1]
        start = (batch.seq_lens - width).long()[batch.q_row]
        at = torch.arange(slots.shape[1])
        offset = at - start[:, None]
        drafted = batch.tree_mask.gather(1, offset.clamp(0, width - 1))
        seen = (offset < 0) | (drafted & (offset < width))
        scores = torch.einsum("thd,tlhd->thl", q, keys[slots]) * layer.scale
        scores.masked_fill_(~seen[:, None], -torch.inf)
        # Behind the end of a shorter request lies whatever somebody left there.
        return torch.einsum("thl,tlhd->thd", scores.softmax(-1), values[slots].nan_to_num(0))


class Staging(Stager):
    """Lets every draft runner read ahead."""

    def stage(self, batch):
        ends = [runner.stage(batch) for runner in self.ctx.drafts]
        return all(end is SharedReadEnds.PRE_REPLAY for end in ends)
