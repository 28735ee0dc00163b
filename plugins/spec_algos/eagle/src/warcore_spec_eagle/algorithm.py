"""Eagle: a trained layer foresees the target's hidden states, and the tokens that they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
import torch

from warcore import Draft, SpecAlgorithm, TensorSpec
from warcore_spec_eagle.heads import head_of
from warcore_spec_eagle.trees import levels_of, tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore import Accepted, DraftSpec, ForwardBatch, ModelInfo, ModelRunner, SpecContext


@attrs.frozen
class Options:
    """Which head drafts."""

    head: str | None = None
    """A file that `python -m warcore_spec_eagle.train` wrote; "random": an untrained one, which
    fits every target and foresees nothing; None: the one that ships for the target."""


class Eagle(SpecAlgorithm):
    """Drafts with one layer that reads the target's last hidden state and the token after it.

    At position p its cache holds what it made of hidden state p and token p + 1: one token is
    known before its hidden state is. So each draft-extend, over what was accepted, gives the first
    token of the next draft already; the relay holds it, with the hidden state it was foreseen by.
    Source: Li et al. 2024, EAGLE, and 2025, EAGLE-3; the reduced vocabulary is of FR-Spec (Zhao
    et al. 2025).
    """

    later_prefill_reader = True
    tree = True
    default_tokens = 4
    Options = Options
    check_options: ClassVar[Mapping[str, str]] = {"head": "random"}

    @classmethod
    def why_not(cls, spec: DraftSpec) -> list[str]:
        """A tree needs a token for each alternative at the first place."""
        if spec.topk > spec.num_tokens:
            return [f"{spec.topk} alternatives of {spec.num_tokens} tokens in all"]
        return []

    @classmethod
    def relay(cls, spec: DraftSpec) -> dict[str, TensorSpec]:
        """The first tokens of the next draft, likeliest first, and what they were foreseen by."""
        return {
            "feature": TensorSpec((spec.target.hidden_size,), spec.dtype),
            "tokens": TensorSpec((spec.topk,), torch.int64),
            "scores": TensorSpec((spec.topk,), torch.float32),
        }

    @classmethod
    def hidden_layers(cls, info: ModelInfo) -> tuple[int, ...]:
        """The last one: what it gives goes into the final norm and the head."""
        return (info.layers[-1].index,)

    def __init__(self, ctx: SpecContext) -> None:
        super().__init__(ctx)
        options: Options = ctx.options  # type: ignore[assignment]
        self._head = head_of(ctx, options.head)
        # Row 0 is padding; nobody else decodes more tokens at once than all rows together.
        rows = ctx.relay["feature"].shape[0] - 1
        self._head.keep_features(rows * (ctx.num_tokens + 1))
        self._runner = ctx.make_runner(self._head)
        self._levels = levels_of(ctx.num_tokens, ctx.spec.topk)

    def draft(self, batch: ForwardBatch) -> Draft:
        """[B, K]: the likeliest token each time; of a tree the likeliest nodes beside them."""
        relay, topk = self.ctx.relay, self.ctx.spec.topk
        feature = relay["feature"].index_select(0, batch.rows)
        tokens = [relay["tokens"].index_select(0, batch.rows)]
        scores = [relay["scores"].index_select(0, batch.rows)]
        for level in range(1, self._levels):
            best = tokens[-1][:, 0]
            batch = attrs.evolve(batch, tokens=best) if level == 1 else batch.after(best)
            self._head.follow(feature, prompt=False)
            output = self._runner.execute(batch)
            assert output.hidden is not None
            feature = output.hidden[0]
            found = self._likeliest(output.logits, topk)
            tokens.append(found[0])
            scores.append(found[1])
        if topk == 1:
            return Draft(torch.cat(tokens, 1))
        return tree(torch.stack(tokens, 1), torch.stack(scores, 1), self.ctx.num_tokens)

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:
        """Read what stands, each hidden state with the token after it; relay what comes next."""
        assert accepted.hidden is not None
        prompt = batch.mode.is_prefill
        if prompt:
            last = (batch.q_start[1:] - 1).long()
            # A token of another request follows its last one, and is written over.
            follows = batch.tokens.roll(-1).index_copy(0, last, accepted.tokens[:, 0])
        else:
            last = batch.q_start[:-1].long() + accepted.lengths - 1
            follows = accepted.tokens.flatten()
        self._head.follow(accepted.hidden[0], prompt=prompt)
        output = self._runner.execute(attrs.evolve(batch, tokens=follows))
        assert output.hidden is not None
        logits = output.logits if prompt else output.logits.index_select(0, last)
        tokens, scores = self._likeliest(logits, self.ctx.spec.topk)
        relay, rows = self.ctx.relay, batch.rows
        relay["feature"].index_copy_(0, rows, output.hidden[0].index_select(0, last))
        relay["tokens"].index_copy_(0, rows, tokens)
        relay["scores"].index_copy_(0, rows, scores)

    def _likeliest(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, count] each: the target's numbers of the likeliest tokens, and their log of chance.

        A chain asks for no chances: they are 0.
        """
        if count == 1:
            best = logits.argmax(-1, keepdim=True)
            return self._head.to_target[best], torch.zeros_like(best, dtype=torch.float32)
        found = logits.float().log_softmax(-1).topk(count, -1)
        return self._head.to_target[found.indices], found.values

    def last_shared_read_runner(self, forward_batch: ForwardBatch) -> ModelRunner:  # noqa: ARG002
        """Its own: the draft-extend comes after the verify."""
        return self._runner
