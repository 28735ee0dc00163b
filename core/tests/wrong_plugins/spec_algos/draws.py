"""Draws each token from its model's distribution, and hands that distribution over."""

from __future__ import annotations

import torch
from wrong_plugins.spec_algos.right import Right

from warcore import Draft

BREAKS = "spec_algo.nothing"


class Draws(Right):
    def draft(self, batch):
        tokens, probs = [], []
        for _ in range(self.ctx.num_tokens):
            if tokens:
                batch = batch.after(tokens[-1])
            said = self.likely(self.runner.execute(batch).logits)
            tokens.append(self.drawn(said))
            probs.append(said)
        return Draft(torch.stack(tokens, 1), probs=torch.stack(probs, 1))

    def likely(self, logits):
        """[B, vocab]: flatter than the target's own, so that not every token stands."""
        return (logits.nan_to_num() / 9).softmax(-1)

    def drawn(self, said):
        return torch.multinomial(said, 1)[:, 0]


Plugin = Draws
