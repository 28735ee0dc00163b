"""Learning: the loop over epochs, its losses, and what the head foresees of texts kept apart."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

import attrs
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from warcore_spec_eagle.train.features import Features
    from warcore_spec_eagle.train.network import Network
    from warcore_spec_eagle.weights import HeadWeights

DECAY: Final = 0.8
"""How much less each further drafted token counts: it matters only if those before are right."""
FORESIGHT: Final = 0.5
"""Weight of the hidden states beside that of the tokens."""
WARM_UP: Final = 0.05
"""Share of the steps in which the learning rate rises."""
CLIP: Final = 1.0
POINTS: Final = 20
"""Of the loss curve."""


@attrs.frozen
class Learning:
    """How the head learns."""

    epochs: int = 4
    texts: int = 8
    """In a step."""
    rate: float = 1e-2
    levels: int = 3
    """Drafted tokens that it is trained to look ahead."""
    near: float = 0.6
    """Share of the steps, the first ones, in which it looks one token ahead: they are cheap."""
    seed: int = 0
    mixed: bool = True
    """Whether matrices are multiplied in bf16."""


@attrs.frozen
class Point:
    """One point of the loss curve."""

    step: int
    loss: float
    """Mean of the training loss since the point before."""
    held_out: tuple[float, ...]
    """Share of the target's likeliest tokens that each level foresees in texts kept apart."""

    @property
    def accept_length(self) -> float:
        """Tokens of a verify if that were the chance of each drafted one, the last for all others.

        For four drafted tokens.
        """
        chances = (*self.held_out, *[self.held_out[-1]] * 4)[:4]
        return 1 + sum(math.prod(chances[: at + 1]) for at in range(4))


def learn(
    network: Network,
    data: Features,
    held_out: Features,
    how: Learning,
    *,
    best: Callable[[HeadWeights, Point], None],
    curve: Path,
) -> list[Point]:
    """Train `network`; the loss curve. best: called with the weights whenever they are the best.

    curve: a file that gets the points as they come.
    """
    optimizers = _optimizers(network, how)
    orders = list(_orders(len(data.tokens), how))
    rising = max(int(WARM_UP * len(orders)), 1)
    paces = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: _pace(step, rising, len(orders)))
        for each in optimizers
    ]
    every = max(len(orders) // POINTS, 1)
    points: list[Point] = []
    losses: list[float] = []
    for step, rows in enumerate(orders, 1):
        levels = 1 if step <= how.near * len(orders) else how.levels
        with torch.autocast("cpu", torch.bfloat16, enabled=how.mixed):
            loss = loss_of(network, data.rows(rows), levels)
        network.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        for optimizer, pace in zip(optimizers, paces, strict=True):
            optimizer.step()
            pace.step()
        losses.append(loss.item())
        if step % every == 0 or step == len(orders):
            seen = foreseen(network, held_out, how)
            point = Point(step, sum(losses) / len(losses), seen)
            if all(point.accept_length > before.accept_length for before in points):
                best(network.trained(), point)
            points.append(point)
            losses.clear()
            curve.write_text(json.dumps([attrs.asdict(each) for each in points]) + "\n")
    return points


def _optimizers(network: Network, how: Learning) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of the layer, AdamW for norms and rows of logits.

    Of a few hundred steps, AdamW for all of them makes half as much.
    """
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, each in network.weights.items():
        (matrices if each.dim() == 2 and name != "rows" else others).append(each)
    muon = torch.optim.Muon(matrices, how.rate, 0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, how.rate, (0.9, 0.95), weight_decay=0.0)]


def _orders(texts: int, how: Learning) -> Iterator[torch.Tensor]:
    """The texts of each step, every text once an epoch."""
    draws = torch.Generator().manual_seed(how.seed)
    for _ in range(how.epochs):
        yield from torch.split(torch.randperm(texts, generator=draws), how.texts)


def _pace(step: int, rising: int, steps: int) -> float:
    """Up in a line, then down along half a cosine."""
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1)))


def loss_of(network: Network, data: Features, levels: int) -> torch.Tensor:
    """Mean over levels: what the target says next, and its hidden states (smooth L1).

    Li et al. 2024, EAGLE. Hidden states are compared at length 1: their scale tells no token.
    """
    total = torch.zeros(())
    for depth, level in enumerate(network(data.tokens, data.hidden, levels)):
        weight = _weights(data, depth)
        at = weight > 0
        logits = functional.linear(level.normed[at], network.rows)
        likeliest, probs = data.likeliest[:, 1:][at].long(), data.probs[:, 1:][at]
        surprise = Surprise.apply(logits, likeliest, probs)  # type: ignore[no-untyped-call]
        lost = surprise + FORESIGHT * _apart(level.feature[at], data.hidden[:, 1:][at])
        total = total + DECAY**depth * (lost * weight[at]).sum() / weight.sum().clamp(min=1)
    return total / sum(DECAY**depth for depth in range(levels))


class Surprise(torch.autograd.Function):
    """[P]: the cross entropy of logits [P, V] and some likely tokens [P, n] with their probs.

    Its gradient is what it says less what was said; written out, it takes a third of the passes
    over [P, V] that autograd takes.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, likeliest: torch.Tensor, probs: torch.Tensor
    ) -> torch.Tensor:
        shares = logits.softmax(-1, dtype=torch.float32)
        ctx.save_for_backward(shares, likeliest, probs)
        ctx.given = logits.dtype
        said = shares.gather(1, likeliest).clamp(min=torch.finfo(torch.float32).tiny).log()
        return -(probs * said).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        shares, likeliest, probs = ctx.saved_tensors
        apart = shares.scatter_add_(1, likeliest, -probs)
        return (apart.mul_(grad[:, None])).to(ctx.given), None, None


def _weights(data: Features, depth: int) -> torch.Tensor:
    """[N, L - 1]: how much each place counts; the first ones have no such draft behind them."""
    weight = data.weight[:, 1:].clone()
    weight[:, :depth] = 0
    return weight


def _apart(feature: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """[P]: how far the foreseen hidden states [P, hidden] are from the target's."""
    size = feature.shape[-1:]
    mine, owed = (functional.rms_norm(each.float(), size) for each in (feature, hidden))
    return functional.smooth_l1_loss(mine, owed, reduction="none").mean(-1)


@torch.no_grad()
def foreseen(network: Network, data: Features, how: Learning) -> tuple[float, ...]:
    """Share of the places where each level's likeliest token is the target's.

    A place whose likeliest token the head cannot propose counts as much as it can.
    """
    right = torch.zeros(how.levels)
    places = torch.zeros(how.levels)
    for rows in torch.split(torch.arange(len(data.tokens)), how.texts):
        part = data.rows(rows)
        with torch.autocast("cpu", torch.bfloat16, enabled=how.mixed):
            said = network(part.tokens, part.hidden, how.levels)
        for depth, level in enumerate(said):
            weight = _weights(part, depth)
            at = weight > 0
            best = functional.linear(level.normed[at], network.rows.to(level.normed.dtype))
            same = best.argmax(-1) == part.likeliest[:, 1:, 0][at]
            right[depth] += (weight[at] * same).sum()
            places[depth] += at.sum()
    return tuple((right / places.clamp(min=1)).tolist())
