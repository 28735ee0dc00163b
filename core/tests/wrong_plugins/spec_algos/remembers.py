"""Proposes what followed each token when the row last had it, all of it from the relay."""

from __future__ import annotations

import torch

from warcore import Draft, SpecAlgorithm, TensorSpec

BREAKS = "spec_algo.nothing"


class Remembers(SpecAlgorithm):
    later_prefill_reader = False

    @classmethod
    def relay(cls, spec):
        return {"after": TensorSpec((spec.target.vocab_size,), torch.int64)}

    def draft(self, batch):
        token, tokens = batch.tokens, []
        for _ in range(self.ctx.num_tokens):
            token = self.table()[batch.rows, token]
            tokens.append(token)
        return Draft(torch.stack(tokens, 1))

    def table(self):
        """[rows + 1, vocab]: what followed each token."""
        return self.ctx.relay["after"]

    def draft_extend(self, batch, accepted):
        self.note(batch, accepted)

    def note(self, batch, accepted):
        """Write down what followed the tokens of `batch`."""
        self.table()[batch.rows[batch.q_row], batch.tokens] = self.following(batch, accepted)

    def following(self, batch, accepted):
        """[T] i64."""
        if accepted.tokens.shape[1] > 1:
            return accepted.tokens.flatten()
        last = (batch.q_start[1:] - 1).long()
        shifted = torch.cat((batch.tokens[1:], batch.tokens[-1:]))
        return shifted.index_copy(0, last, accepted.tokens[:, 0])


Plugin = Remembers
