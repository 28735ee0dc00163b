"""Keeps the target's hidden state in the relay, and takes the token that lies nearest to it."""

from __future__ import annotations

from warcore import Draft, SpecAlgorithm, TensorSpec

BREAKS = "spec_algo.nothing"


class FollowsHiddenStates(SpecAlgorithm):
    later_prefill_reader = False

    @classmethod
    def hidden_layers(cls, info):
        return (len(info.layers) - 1,)

    @classmethod
    def relay(cls, spec):
        return {"hidden": TensorSpec((spec.target.hidden_size,), spec.dtype)}

    def draft(self, batch):
        near = self.ctx.relay["hidden"].index_select(0, batch.rows)
        best = (near @ self.ctx.model._head).topk(self.ctx.num_tokens).indices
        return Draft(best)

    def draft_extend(self, batch, accepted):
        last = (batch.q_start[:-1] + accepted.lengths - 1).long()
        if accepted.tokens.shape[1] == 1:
            last = (batch.q_start[1:] - 1).long()
        self.ctx.relay["hidden"].index_copy_(0, batch.rows, accepted.hidden[0, last])


Plugin = FollowsHiddenStates
