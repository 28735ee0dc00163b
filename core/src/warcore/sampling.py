"""Sampling: the next tokens of a batch from its logits.

A draw depends on its own logits, parameters, seed and position and on nothing else, so a request
gets the same tokens whichever batch it runs in. Importing this module imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.draws import uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from warcore.samplingparams import SamplingParams

    ToDevice = Callable[[list[float] | list[int], torch.dtype], torch.Tensor]


@attrs.frozen(eq=False)
class SamplingBatch:
    """The parameters of B rows on the device. A tensor that no row needs is None."""

    temperature: torch.Tensor | None = None
    """[B] floats; None: every row is greedy, and one argmax is all that is computed."""
    seed: torch.Tensor | None = None
    """[B] i64; None with `temperature`."""
    top_k: torch.Tensor | None = None
    """[B] i64, 0: off for the row."""
    most_k: int = 0
    """The largest `top_k`, on the host."""
    every_k: bool = False
    """Whether every row that draws has a top-k."""
    top_p: torch.Tensor | None = None
    """[B] floats, 1: off for the row."""
    min_p: torch.Tensor | None = None
    """[B] floats, 0: off for the row."""

    @classmethod
    def build(
        cls, params: Sequence[SamplingParams], seeds: Sequence[int], to_device: ToDevice
    ) -> SamplingBatch:
        """The batch of `params`, one row each, with the seeds that the rows really use.

        Host work only, apart from `to_device(values, dtype)`, which is called once for each tensor
        that some row needs: not at all for a greedy batch.
        """
        import torch

        if all(p.temperature == 0 for p in params):
            return cls()

        def column(values: list[float], off: float, dtype: torch.dtype) -> torch.Tensor | None:
            return None if all(v == off for v in values) else to_device(values, dtype)

        return cls(
            temperature=to_device([float(p.temperature) for p in params], torch.float32),
            seed=to_device(list(seeds), torch.int64),
            top_k=column([p.top_k for p in params], 0, torch.int64),
            most_k=max(p.top_k for p in params),
            every_k=all(p.top_k for p in params if p.temperature),
            top_p=column([float(p.top_p) for p in params], 1.0, torch.float32),
            min_p=column([float(p.min_p) for p in params], 0.0, torch.float32),
        )

    def repeated(self, count: int) -> SamplingBatch:
        """Every row `count` times in a row, for as many logits of each request."""
        if self.temperature is None:
            return self

        def each(column: torch.Tensor | None) -> torch.Tensor | None:
            return None if column is None else column.repeat_interleave(count)

        return attrs.evolve(
            self,
            temperature=each(self.temperature),
            seed=each(self.seed),
            top_k=each(self.top_k),
            top_p=each(self.top_p),
            min_p=each(self.min_p),
        )


def sample(logits: torch.Tensor, batch: SamplingBatch, positions: torch.Tensor) -> torch.Tensor:
    """The next token of each row: logits [B, vocab], positions [B] integers -> [B] i64.

    positions: where in its sequence each sampled token will stand; with the seed it keys the draw.
    Rows with temperature 0 take the likeliest token, the lowest id of several. The others draw by
    inverse CDF over the ids that the filters keep, in the order temperature, top-k, top-p, min-p,
    each on what the one before left. The order is that of transformers' logits processors; the
    rules are from Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p) and Nguyen et al. 2024
    (min-p). Tokens as likely as the last one kept are kept too. Computed in float32, or in float64
    if the logits are. On the current stream, without a host sync, in shapes fixed by the inputs.
    """
    import torch

    likeliest = logits.max(dim=-1).indices
    if batch.temperature is None or batch.seed is None:
        # Not argmax: on a CPU in bfloat16 that takes four times as long for the same answer.
        return likeliest
    drawn = draw(probabilities(logits, batch), batch.seed, positions)
    return torch.where(batch.temperature == 0, likeliest, drawn)


def probabilities(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """What each row draws from, up to a factor: [B, vocab] in float32, or float64 if logits are.

    Meaningless for rows of temperature 0. The batch has rows that draw.
    """
    import torch

    assert batch.temperature is not None
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    scale = batch.temperature.masked_fill(batch.temperature == 0, 1.0).to(dtype)
    # What `dtype` cannot hold would divide 0 by 0, or infinity by infinity.
    scale = scale.clamp(torch.finfo(dtype).tiny, torch.finfo(dtype).max)
    scores = logits.to(dtype)
    # The maximum goes first: a tiny temperature then gives -inf, never inf - inf.
    probs = ((scores - scores.amax(-1, keepdim=True)) / scale[:, None]).softmax(dim=-1)
    return _filtered(probs, batch)


def draw(probs: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token of each row, [B] i64, by inverse CDF: probs [B, vocab] need not add up to 1."""
    import torch

    cdf = probs.cumsum(dim=-1)
    total = cdf[:, -1:]
    target = uniform(seeds, positions, probs.dtype)[:, None] * total
    # Below the total even after rounding, so that the token found has a probability.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cdf, target, right=True).squeeze(1)
    # NOTE: logits that are no numbers find no token; an id out of range would fail everybody.
    return drawn.clamp(max=probs.shape[1] - 1)


def _filtered(probs: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """`probs` with 0 where a filter drops the token.

    Every filter is a floor of the probability, and the draw follows the ids, so nothing needs to
    be sorted but what top-p adds up. A filter that is off for a row leaves the row bit-identical,
    so it does not matter that another row needs it.
    """
    import torch

    k = None
    if batch.top_k is not None:
        k = batch.top_k[:, None].clamp(max=probs.shape[1])
        largest = probs.topk(min(batch.most_k, probs.shape[1]), dim=-1).values
        floor = largest.gather(1, (k - 1).clamp(min=0))
        probs = probs.masked_fill((probs < floor) & (k > 0), 0.0)
    if batch.top_p is not None:
        top_p = batch.top_p.to(probs.dtype)[:, None]
        # NOTE: sorting 49,152 numbers takes a CPU about as long as a step of a small model. Where
        # every row has a top-k, no more than that many are left.
        descending = (
            probs.topk(min(batch.most_k, probs.shape[1]), dim=-1).values
            if batch.every_k
            else probs.sort(dim=-1, descending=True).values
        )
        mass = descending.cumsum(-1)
        kth, total = _at_k(probs, descending, mass, k)
        last = (mass < top_p * total).sum(-1, keepdim=True)
        floor = descending.gather(1, torch.minimum(last, kth))
        probs = probs.masked_fill((probs < floor) & (top_p < 1), 0.0)
    if batch.min_p is not None:
        floor = batch.min_p.to(probs.dtype)[:, None] * probs.amax(-1, keepdim=True)
        probs = probs.masked_fill(probs < floor, 0.0)
    return probs


def _at_k(
    probs: torch.Tensor, descending: torch.Tensor, mass: torch.Tensor, k: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, 1] each: where the last token that top-k kept stands in `descending`, the mass of all.

    Behind its k-th stand only tokens as likely as that. How many of them `descending` has depends
    on the other rows, so they are counted among all.
    """
    import torch

    width = descending.shape[1]
    if k is None:
        return torch.full_like(mass[:, -1:], width - 1, dtype=torch.int64), mass[:, -1:]
    own = k.masked_fill(k == 0, width).clamp(max=width) - 1
    as_likely = ((probs > 0).sum(-1, keepdim=True) - own - 1).clamp(min=0)
    return own, mass.gather(1, own) + as_likely * descending.gather(1, own)
