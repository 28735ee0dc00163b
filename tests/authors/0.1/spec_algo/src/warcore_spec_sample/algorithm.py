"""The algorithm: what it remembers of each request, and what it proposes from that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from warcore import Draft, SpecAlgorithm, TensorSpec

if TYPE_CHECKING:
    from warcore import Accepted, DraftSpec, ForwardBatch


class Sample(SpecAlgorithm):
    """Proposes what followed each token when its request last had it.

    What is proposed may be wrong: warcore verifies it with the target, and the text is
    the same as without. What is remembered lives in the relay, by row, on the device.
    """

    later_prefill_reader = False
    """Without a draft model, nothing reads the tables after the target's prefill."""

    @classmethod
    def why_not(cls, spec: DraftSpec) -> list[str]:
        """Every reason why it cannot serve `spec`; shown to whoever asks in vain."""
        return ["several alternatives at a position"] if spec.topk > 1 else []

    @classmethod
    def relay(cls, spec: DraftSpec) -> dict[str, TensorSpec]:
        """For each row and token the token that followed; 0 where none has yet."""
        return {"after": TensorSpec((spec.target.vocab_size,), torch.int64)}

    def draft(self, batch: ForwardBatch) -> Draft:
        """[B, K]: from the newest token on, each time the one that followed."""
        after = self.ctx.relay["after"]
        token, tokens = batch.tokens, []
        for _ in range(self.ctx.num_tokens):
            token = after[batch.rows, token]
            tokens.append(token)
        return Draft(torch.stack(tokens, 1))

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:
        """Remember what followed each token of the batch. No host sync."""
        after = self.ctx.relay["after"]
        rows = batch.rows[batch.q_row]
        if batch.mode.is_prefill:
            self._forget(batch)
            follows = batch.tokens.roll(-1)
            follows[batch.q_start[1:].long() - 1] = accepted.tokens[:, 0]
        else:
            # Beyond what was accepted stand guesses: row 0 is nobody's.
            place = torch.arange(accepted.tokens.shape[1], device=rows.device)
            counts = place < accepted.lengths[:, None]
            rows = torch.where(counts.flatten(), rows, 0)
            follows = accepted.tokens.flatten()
        after[rows, batch.tokens] = follows

    def _forget(self, batch: ForwardBatch) -> None:
        """A request that begins finds nothing of the one that had its row before."""
        after = self.ctx.relay["after"]
        begins = batch.positions[batch.q_start[:-1].long()] == 0
        kept = after[batch.rows].masked_fill(begins[:, None], 0)
        after[batch.rows] = kept
