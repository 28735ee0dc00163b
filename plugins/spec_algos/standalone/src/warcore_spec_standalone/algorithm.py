"""Standalone: a second, smaller model proposes what it would say itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from warcore import Draft, ForwardMode, SpecAlgorithm, WiringError
from warcore_spec_standalone.smaller import smaller_model

if TYPE_CHECKING:
    from warcore import Accepted, DraftSpec, ForwardBatch, SpecContext


@attrs.frozen
class Options:
    """Which model drafts."""

    model: str | None = None
    """A reference, as for --model; None: the target's first layers, with its head."""
    layers: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    """How many of them; None: a third of all."""


class Standalone(SpecAlgorithm):
    """Drafts a chain with a model of its own, the likeliest token each time.

    All reads of a decode step's drafts come before the verify: the last token of the chain is
    computed too, so that nothing is left to compute once it is known what stands.
    """

    later_prefill_reader = True
    default_tokens = 4
    Options = Options

    @classmethod
    def why_not(cls, spec: DraftSpec) -> list[str]:
        """It drafts no trees."""
        return (
            [f"{spec.topk} alternatives at a position: it drafts chains"] if spec.topk > 1 else []
        )

    def __init__(self, ctx: SpecContext) -> None:
        super().__init__(ctx)
        options: Options = ctx.options  # type: ignore[assignment]
        model = smaller_model(ctx, options.model, options.layers)
        if model.info.vocab_size != ctx.spec.target.vocab_size:
            raise WiringError(
                f"spec_algo:standalone: {model.info.name} has {model.info.vocab_size} tokens and "
                f"the target {ctx.spec.target.vocab_size}, so they do not mean the same",
                next="--opt standalone.model=REF of the same family, or leave it out",
            )
        self._runner = ctx.make_runner(model, captured=frozenset({ForwardMode.DECODE}))

    def draft(self, batch: ForwardBatch) -> Draft:
        """[B, K]: each token is the likeliest after the one before."""
        tokens: list[torch.Tensor] = []
        for _ in range(self.ctx.num_tokens):
            tokens.append(self._runner.execute(batch).logits.argmax(-1))
            batch = batch.after(tokens[-1])
        # Its keys are there if it stands; if not, the next draft writes over them.
        self._runner.execute(batch)
        return Draft(torch.stack(tokens, 1))

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:  # noqa: ARG002
        """Read the prompt after the target; what a verify accepted has been computed already."""
        if batch.mode.is_prefill:
            self._runner.execute(batch)
