"""Proposes its model's best and second best token at each position."""

from __future__ import annotations

import torch
from wrong_plugins.spec_algos.right import Right

from warcore import Draft

BREAKS = "spec_algo.nothing"


class Branches(Right):
    tree = True

    def draft(self, batch):
        if self.ctx.spec.topk == 1:
            return super().draft(batch)
        tokens, parents, stem = [], [], 0
        while len(tokens) < self.ctx.num_tokens:
            if tokens:
                batch = batch.after(tokens[stem - 1])
            best = self.runner.execute(batch).logits.topk(2).indices
            room = min(2, self.ctx.num_tokens - len(tokens))
            tokens += best[:, :room].unbind(1)
            parents += [torch.full_like(batch.tokens, self.parent(stem))] * room
            stem = len(tokens) - room + 1
        return Draft(torch.stack(tokens, 1), parents=torch.stack(parents, 1))

    def parent(self, stem):
        return stem


Plugin = Branches
