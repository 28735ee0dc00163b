"""Ngram: proposes what followed the request's last words the time before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from warcore import Draft, SpecAlgorithm, TensorSpec
from warcore_spec_ngram.matching import candidates, following, match_lengths

if TYPE_CHECKING:
    from warcore import Accepted, DraftSpec, ForwardBatch, SpecContext


@attrs.frozen
class Options:
    """How much must repeat before anything is proposed."""

    shortest: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Tokens that must be the same, at least, up to the newest one."""
    longest: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """Of more tokens nobody asks whether they are the same."""

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(f"shortest={self.shortest} is above longest={self.longest}")


class Ngram(SpecAlgorithm):
    """Looks for the longest suffix of a request that occurred in it before.

    It needs no draft model: prompt and answer are kept in the relay, by row, and searched on the
    device. A tree proposes what followed several occurrences.
    """

    later_prefill_reader = False
    tree = True
    default_tokens = 5
    Options = Options

    @classmethod
    def why_not(cls, spec: DraftSpec) -> list[str]:
        """A tree needs a token for each of its branches."""
        if spec.topk > spec.num_tokens:
            return [f"{spec.topk} branches of {spec.num_tokens} tokens in all"]
        return []

    @classmethod
    def relay(cls, spec: DraftSpec) -> dict[str, TensorSpec]:
        """[max_context] i32: the tokens of a row's sequence, by position."""
        return {"history": TensorSpec((spec.max_context,), torch.int32)}

    def __init__(self, ctx: SpecContext) -> None:
        super().__init__(ctx)
        self._branches = branches(ctx.num_tokens, ctx.spec.topk)
        self._parents: torch.Tensor | None = None
        if ctx.spec.topk > 1:
            parents: list[int] = []
            for length in self._branches:
                start = len(parents) + 1
                parents += [0, *range(start, start + length - 1)]
            self._parents = torch.tensor(parents, device=ctx.spec.device)

    def draft(self, batch: ForwardBatch) -> Draft:
        """[B, K]: what followed the best occurrences; of a request without one nothing is meant."""
        options: Options = self.ctx.options  # type: ignore[assignment]
        history, last = self.ctx.relay["history"], batch.positions
        history[batch.rows, last] = batch.tokens.int()
        # No row is longer than the host's bound, and most are far shorter than the context.
        text = history[:, : batch.max_seq_len].index_select(0, batch.rows)
        lengths = match_lengths(text, last, options.longest)
        lengths.masked_fill_(lengths < options.shortest, 0)
        tokens, meant = [], torch.zeros_like(last)
        for width, (at, found) in zip(
            self._branches, candidates(text, lengths, len(self._branches)), strict=True
        ):
            tokens.append(following(text, at, last, width))
            meant += width * found
        parents = None if self._parents is None else self._parents.expand(batch.size, -1)
        return Draft(torch.cat(tokens, 1).long(), parents=parents, lengths=meant)

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:  # noqa: ARG002
        """Keep the batch's tokens at their positions.

        Beyond what was accepted these are guesses; the next step writes over them before it looks
        so far.
        """
        rows = batch.rows.index_select(0, batch.q_row)
        self.ctx.relay["history"][rows, batch.positions] = batch.tokens.int()


def branches(tokens: int, count: int) -> list[int]:
    """How many of `tokens` each of `count` branches gets: the first has all that others leave.

    A later branch is right only where the first is wrong at once, so it gets half of a fair share.
    """
    other = max(tokens // (2 * count), 1)
    return [tokens - (count - 1) * other, *[other] * (count - 1)]
