"""Runs of one model that must agree, and how they are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import torch

from warcore.testkit.models.dense import Dense
from warcore.testkit.outcome import Failure, Refuted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warcore.batch import ForwardBatch
    from warcore.testkit.models.references import Loaded

NEXT: Final = 1
"""The token that each request decodes."""


def prompt(it: Loaded, count: int, seed: int = 0) -> list[int]:
    """`count` tokens of the model's vocabulary, as many as its context holds with one more."""
    draw = torch.Generator().manual_seed(seed)
    count = max(1, min(count, it.described.max_context - 1))
    drawn: list[int] = torch.randint(it.described.vocab_size, (count,), generator=draw).tolist()
    return drawn


def steps(
    it: Loaded, order: Sequence[str], prompts: Mapping[str, Sequence[int]], padding: int = 0
) -> dict[str, torch.Tensor]:
    """Each request's logits [prompt + 1, vocab] of a prefill and a decode step of them all."""
    dense = Dense(it.model, it.device)
    found: dict[str, list[torch.Tensor]] = {who: [] for who in order}
    for tokens in ({who: prompts[who] for who in order}, {who: [NEXT] for who in order}):
        logits = dense.forward(*tokens.items(), padding=padding).logits
        start = 0
        for who, new in tokens.items():
            found[who].append(logits[start : start + len(new)].clone())
            start += len(new)
    return {who: torch.cat(parts) for who, parts in found.items()}


def hidden(
    it: Loaded, tokens: Sequence[int], layers: tuple[int, ...], disturbed: int | None = None
) -> torch.Tensor:
    """Hidden states [layers, tokens, hidden_size] of one request. Refuted for another shape.

    disturbed: a layer whose attention gives something else.
    """
    dense = Dense(it.model, it.device)
    dense.disturbed = disturbed
    found = dense.forward(("only", tokens), hidden_layers=layers).hidden
    wanted = [len(layers), len(tokens), it.described.hidden_size]
    shape = None if found is None else [*found.shape]
    same(f"hidden states of layers {layers} are {wanted}", shape, wanted)
    assert found is not None
    return found.clone()


def refute_other_layer(it: Loaded, tokens: Sequence[int], layer: int) -> None:
    """Refuted if what is given for `layer` is the stream before it, or after a later one.

    Attention of a layer that gives something else must show in the stream after that layer, and
    must not show in it before.
    """
    rule = f"the hidden state of layer {layer} is the residual stream after it"
    plain = hidden(it, tokens, (layer,))
    own = hidden(it, tokens, (layer,), disturbed=layer)
    if _distance(own, plain) <= it.tolerance:
        what = f"it does not depend on what layer {layer} attends to"
        raise Refuted(Failure(rule, what, cell=f"layer{layer}"))
    if layer + 1 < len(it.described.layers):
        later = hidden(it, tokens, (layer,), disturbed=layer + 1)
        if _distance(later, plain) > it.tolerance:
            what = f"it depends on what layer {layer + 1} attends to"
            raise Refuted(Failure(rule, what, cell=f"layer{layer}"))


def boundaries(it: Loaded) -> list[int]:
    """Positions of the model's context: the first ones, around each power of two, the last ones."""
    end = it.described.max_context
    powers = [1 << power for power in range(end.bit_length())]
    found = {0, 1, *powers, *(power - 1 for power in powers), end - 2, end - 1}
    return sorted(place for place in found if 0 <= place < end)


def at_places(it: Loaded, places: Sequence[int]) -> list[torch.Tensor]:
    """[places, numbers] of each layer: queries and keys of one token, alone in each position."""
    dense = Dense(it.model, it.device)
    for place in places:
        dense.skip(str(place), place)
    dense.forward(*((str(place), [NEXT]) for place in places))
    return dense.asked


def refute_alike(it: Loaded, layer: int, places: Sequence[int], found: torch.Tensor) -> None:
    """Refuted if a layer has the same in two of `places`, [places, numbers], and not in all."""
    alike = torch.cdist(found, found, p=torch.inf) <= it.tolerance * found.abs().max()
    twins = alike.triu(1).nonzero().tolist()
    if twins and not alike[:2, :2].all():
        one, other = (places[index] for index in twins[0])
        what = f"layer {layer} gives the same queries and keys at positions {one} and {other}"
        rule = "each position is told from every other one"
        raise Refuted(Failure(rule, what, seen_by=("comparison",)))


def same(rule: str, found: Any, wanted: Any) -> None:
    """Refuted unless the two are equal."""
    if found != wanted:
        raise Refuted(Failure(rule, f"{found} in place of {wanted}"))


def close(
    it: Loaded, what: str, found: torch.Tensor, wanted: torch.Tensor, *, rule: str, cell: str
) -> None:
    """Refuted unless the two agree up to rounding in another order."""
    if found.shape != wanted.shape:
        raise Refuted(
            Failure(rule, f"{what}: {[*found.shape]} in place of {[*wanted.shape]}", cell=cell)
        )
    distance = _distance(found, wanted)
    if not distance <= it.tolerance:
        raise Refuted(
            Failure(
                rule,
                f"{what}: it differs by {distance:.1e} of the largest value, where rounding "
                f"explains {it.tolerance:.0e}",
                seen_by=("comparison",),
                cell=cell,
            )
        )


def tensors(batch: ForwardBatch) -> dict[str, torch.Tensor]:
    """A copy of each tensor of a batch."""
    values = attrs.asdict(batch, recurse=False)
    return {name: value.clone() for name, value in values.items() if torch.is_tensor(value)}


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, as a part of the largest value; not a number if either holds one."""
    scale = wanted.abs().max().clamp(min=1e-30)
    return float((found - wanted).abs().max() / scale)
