"""Which head drafts for a target: a named one, an untrained one, or the one that ships."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from warcore import WiringError
from warcore_spec_eagle.head import DraftHead
from warcore_spec_eagle.weights import HeadSizes, HeadWeights, read_head, untrained

if TYPE_CHECKING:
    from warcore import SpecContext

SHIPPED: Final = Path(__file__).with_name("smollm2-135m.safetensors")
TRAIN: Final = "python -m warcore_spec_eagle.train --model"
UNTRAINED_VOCAB: Final = 8192


def head_of(ctx: SpecContext, named: str | None) -> DraftHead:
    """The head of an option's value. WiringError with every reason why it does not fit the target.

    ModelError for a file that is missing or damaged.
    """
    model, info = ctx.model, ctx.spec.target
    if named == "random":
        own = model.unembedding is None
        weights = untrained(HeadSizes.like(info, UNTRAINED_VOCAB, own_rows=own), seed=0)
    else:
        weights = read_head(SHIPPED if named is None else Path(named).expanduser())
    reasons = _reasons(ctx, weights)
    if reasons:
        which = "the head that ships" if named is None else f"the head {named}"
        lines = "".join(f"\n  {reason}" for reason in reasons)
        raise WiringError(
            f"spec_algo:eagle: {which} is not one for {info.name}:{lines}",
            next=f"{TRAIN} {info.name}, then --opt eagle.head=FILE",
        )
    return DraftHead(weights, model, device=ctx.spec.device, dtype=ctx.spec.dtype)


def _reasons(ctx: SpecContext, weights: HeadWeights) -> list[str]:
    reasons = weights.sizes.mismatches(ctx.spec.target)
    if ctx.model.embedding is None:
        reasons.append("it shares the target's embedding, and the target shows none")
    if ctx.model.unembedding is None and not weights.sizes.own_rows:
        reasons.append("it takes rows of what gives the target's logits, and the target shows none")
    return reasons
