"""What a model's samples are distributed like, and how far samples are from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warcore.testkit.models.dense import Dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warcore.model import Model

LEAST = 5.0
"""Fewer expected samples of a token than this are counted together with others."""
FAR = 5.0
"""Standard deviations: further out lies one honest result in three million."""


def expected_counts(
    model: Model, prompt: Sequence[int], answers: Sequence[Sequence[int]], place: int, heat: float
) -> torch.Tensor:
    """[vocab]: how often each token is to be expected at `place` of answers that began like these.

    heat: the temperature.
    """
    dense = Dense(model, torch.device("cpu"))
    counts: dict[tuple[int, ...], int] = {}
    for answer in answers:
        begun = tuple(answer[:place])
        counts[begun] = counts.get(begun, 0) + 1
    requests = [(str(begun), [*prompt, *begun]) for begun in counts]
    ends = torch.tensor([len(tokens) for _, tokens in requests]).cumsum(0) - 1
    logits = dense.forward(*requests, logits_at=ends).logits
    times = torch.tensor([*counts.values()], dtype=logits.dtype)
    return (times[:, None] * (logits / heat).softmax(-1)).sum(0)


def observed_counts(answers: Sequence[Sequence[int]], place: int, vocab: int) -> torch.Tensor:
    """[vocab]: how often each token came at `place`."""
    return torch.tensor([answer[place] for answer in answers]).bincount(minlength=vocab)


def deviation(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """How far counts are from those expected: chi-square, as deviations of a standard normal one.

    The normal approximation is Wilson and Hilferty's (1931). Rare tokens are counted as one.
    """
    often = expected >= LEAST
    observed, expected = (
        torch.cat((counts[often].double(), counts[~often].double().sum()[None]))
        for counts in (observed, expected)
    )
    if expected[-1] < LEAST:
        # Too rare to be a cell of its own: with the likeliest of the others.
        at = int(expected[:-1].argmax())
        for counts in (observed, expected):
            counts[at] += counts[-1]
        observed, expected = observed[:-1], expected[:-1]
    freedom = max(len(expected) - 1, 1)
    chi = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return float(((chi / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)
