"""Which head drafts for a target: a named one, an untrained one, or the one that ships."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from warcore import WiringError
from warcore_spec_eagle.head import DraftHead
from warcore_spec_eagle.weights import HeadSizes, HeadWeights, read_head, read_sizes, untrained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore import ModelInfo, SpecContext

SHIPPED: Final = Path(__file__).with_name("heads")
"""A file for each target that a head ships for."""
UNTRAINED_VOCAB: Final = 8192


def head_of(ctx: SpecContext, named: str | None) -> DraftHead:
    """The head of an option's value. WiringError with every reason why it does not fit the target.

    ModelError for a file that is missing or damaged.
    """
    info = ctx.spec.target
    if named == "random":
        own = ctx.model.unembedding is None
        weights = untrained(HeadSizes.like(info, UNTRAINED_VOCAB, own_rows=own), seed=0)
    else:
        file = _shipped_for(info) if named is None else Path(named).expanduser()
        weights = read_head(file)
    reasons = _reasons(ctx, weights)
    if reasons:
        which = "the head that ships" if named is None else f"the head {named}"
        raise _refusal(f"{which} is not one for {info.name}:", reasons, info)
    known = weights.sizes.draft_vocab
    if ctx.spec.topk > known:
        raise WiringError(
            f"spec_algo:eagle: {ctx.spec.topk} alternatives of a head that knows {known} tokens",
            next=f"--spec-topk {known} or less",
        )
    return DraftHead(weights, ctx.model, device=ctx.spec.device, dtype=ctx.spec.dtype)


def _shipped_for(info: ModelInfo) -> Path:
    """The shipped head for a model of these sizes."""
    files = sorted(SHIPPED.glob("*.safetensors"))
    found = {file: read_sizes(file).mismatches(info) for file in files}
    fits = [file for file, reasons in found.items() if not reasons]
    if not fits:
        others = [f"{file.stem}: {'; '.join(why)}" for file, why in found.items()]
        raise _refusal(f"no head ships for {info.name}", others, info)
    return fits[0]


def _refusal(what: str, reasons: Sequence[str], info: ModelInfo) -> WiringError:
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return WiringError(
        f"spec_algo:eagle: {what}{lines}",
        next=f"python -m warcore_spec_eagle.train --model {info.name}, then --opt eagle.head=FILE",
    )


def _reasons(ctx: SpecContext, weights: HeadWeights) -> list[str]:
    reasons = weights.sizes.mismatches(ctx.spec.target)
    if ctx.model.embedding is None:
        reasons.append("it shares the target's embedding, and the target shows none")
    if ctx.model.unembedding is None and not weights.sizes.own_rows:
        reasons.append("it takes rows of what gives the target's logits, and the target shows none")
    return reasons
