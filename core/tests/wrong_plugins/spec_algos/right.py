"""A draft model that is the target itself, and the pieces that the wrong ones replace."""

from __future__ import annotations

import torch

from warcore import Draft, SpecAlgorithm

BREAKS = "spec_algo.nothing"


class Right(SpecAlgorithm):
    """Drafts with a runner of its own, token by token."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.runner = ctx.make_runner(ctx.model)

    def draft(self, batch):
        tokens = []
        for _ in range(self.ctx.num_tokens):
            if tokens:
                batch = batch.after(tokens[-1])
            tokens.append(self.choose(self.runner.execute(batch).logits))
        return Draft(torch.stack(tokens, 1))

    def choose(self, logits):
        """[B] i64, from [B, vocab]."""
        return logits.argmax(-1)

    def draft_extend(self, batch, accepted):
        self.runner.execute(batch)

    def last_shared_read_runner(self, forward_batch):
        return self.runner


Plugin = Right
