"""Acceptance: which drafted tokens stand, and what the target says after them.

Two rules, both lossless whatever was drafted. Tokens that were not drawn stand if they are what
the target itself takes at their place: the same draws as without speculation, so even the sampled
text is the same. Tokens that were drawn from a distribution stand by rejection sampling (Leviathan
et al. 2023; Chen et al. 2023), with siblings one after the other (Miao et al. 2024, SpecInfer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from warcore.draws import SEED_LIMIT, uniform
from warcore.sampling import draw, probabilities, sample

if TYPE_CHECKING:
    import torch

    from warcore.sampling import SamplingBatch
    from warcore.spec import Draft

_OWN_DRAWS: Final = 0x2545F4914F6CDD1D
"""Sets the draws of acceptance apart from those of tokens, which share seed and position."""


@attrs.frozen(eq=False)
class Stand:
    """What stands of a draft, of B requests."""

    tokens: torch.Tensor
    """[B, K + 1] i64: the tokens that follow; the first `lengths` count."""
    lengths: torch.Tensor
    """[B] i64, 1 to K + 1: one more than drafted tokens stand."""
    path: torch.Tensor
    """[B, K + 1] i64: the node that stands at each depth; node 0 is the token before the draft.
    Beyond `lengths` it is the depth itself."""


def accept(
    logits: torch.Tensor,
    draft: Draft,
    allowed: torch.Tensor,
    sampling: SamplingBatch,
    places: torch.Tensor,
    *,
    sees: torch.Tensor | None = None,
) -> Stand:
    """Judge a draft by the target's logits [B, K + 1, vocab], one for each node.

    allowed: [B, K] bool, which drafted tokens may stand at all. places: [B, K + 1], where in the
    sequence the token after each node stands. sees: of a tree, what `ancestry` says. On the current
    stream, without a host sync.
    """
    if draft.probs is not None and sampling.temperature is not None:
        return _by_rejection(logits, draft, allowed, sampling, places)
    batch, nodes, vocab = logits.shape
    wanted = sample(
        logits.reshape(batch * nodes, vocab), sampling.repeated(nodes), places.reshape(-1)
    ).view(batch, nodes)
    if draft.parents is None:
        return _along_chain(wanted, draft.tokens, allowed)
    assert sees is not None
    return _down_tree(wanted, draft, allowed, sees)


def _along_chain(wanted: torch.Tensor, tokens: torch.Tensor, allowed: torch.Tensor) -> Stand:
    import torch

    right = (tokens == wanted[:, :-1]) & allowed
    lengths = right.long().cumprod(1).sum(1) + 1
    nodes = torch.arange(wanted.shape[1], device=wanted.device)
    return Stand(wanted, lengths, nodes.expand_as(wanted))


def _down_tree(
    wanted: torch.Tensor, draft: Draft, allowed: torch.Tensor, sees: torch.Tensor
) -> Stand:
    """A node stands if it and all that it descends from are wanted; the deepest one is the end."""
    import torch

    assert draft.parents is not None
    depths = sees.sum(2) - 1
    batch, width = depths.shape
    refused = (draft.tokens != wanted.gather(1, draft.parents)) | ~allowed
    refused = torch.nn.functional.pad(refused, (1, 0))
    # What does not descend from the token before the draft follows nothing that was said.
    stands = sees[:, :, 0] & ~(sees & refused[:, None]).any(2)
    nodes = torch.arange(width, device=wanted.device).expand(batch, width)
    # Of several that are as deep (siblings of one token), the first.
    last = torch.where(stands, depths * width - nodes, -1).argmax(1, keepdim=True)
    on_path = sees.gather(1, last[:, :, None].expand(batch, 1, width)).squeeze(1)
    path = torch.arange(width + 1, device=wanted.device).repeat(batch, 1)
    path.scatter_(1, torch.where(on_path, depths, width), nodes)
    depth = depths.gather(1, last).squeeze(1)
    return _stand(path[:, :width], depth, draft.tokens, wanted.gather(1, last).squeeze(1))


def ancestry(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(how deep each node lies [B, K + 1], which nodes it sees [B, K + 1, K + 1] bool).

    parents: [B, K], of nodes 1 to K. A node sees itself and what it descends from.
    """
    import torch

    batch, drafted = parents.shape
    sees = torch.eye(drafted + 1, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    above = torch.nn.functional.pad(parents, (1, 0))
    # Each round doubles how far up a node sees.
    for _ in range(drafted.bit_length()):
        sees |= sees.gather(1, above[:, :, None].expand_as(sees))
        above = above.gather(1, above)
    return sees.sum(2) - 1, sees


def _stand(
    path: torch.Tensor, depth: torch.Tensor, tokens: torch.Tensor, after: torch.Tensor
) -> Stand:
    """The tokens [B, K] of `path` down to `depth` [B], then the one `after` it [B]."""
    import torch

    drafted = tokens.gather(1, (path[:, 1:] - 1).clamp(min=0))
    result = torch.cat((drafted, after[:, None]), 1)
    return Stand(result.scatter_(1, depth[:, None], after[:, None]), depth + 1, path)


def _by_rejection(
    logits: torch.Tensor,
    draft: Draft,
    allowed: torch.Tensor,
    sampling: SamplingBatch,
    places: torch.Tensor,
) -> Stand:
    """Each node in turn against what is left of the target's distribution at its parent."""
    import torch

    assert draft.probs is not None
    assert sampling.temperature is not None
    assert sampling.seed is not None
    batch, nodes, vocab = logits.shape
    flat = logits.reshape(batch * nodes, vocab)
    probs = probabilities(flat, sampling.repeated(nodes))
    probs = (probs / probs.sum(-1, keepdim=True)).view(batch, nodes, vocab)
    # A request of temperature 0 has one token, the likeliest.
    sure = torch.zeros_like(probs).scatter_(2, flat.max(-1).indices.view(batch, nodes, 1), 1.0)
    probs = torch.where((sampling.temperature == 0)[:, None, None], sure, probs)
    tokens, drawn_from = draft.tokens, draft.probs.to(probs.dtype)
    walk = _Walk(batch, nodes - 1, logits.device)
    left = probs[:, 0]
    for node in range(1, nodes):
        follows = node - 1 if draft.parents is None else draft.parents[:, node - 1]
        asked = (walk.at == follows) & allowed[:, node - 1]
        token, q = tokens[:, node - 1], drawn_from[:, node - 1]
        own = node * _OWN_DRAWS % SEED_LIMIT
        luck = uniform(sampling.seed ^ own, walk.of(places), probs.dtype)
        chance = left.gather(1, token[:, None]).squeeze(1)
        stands = asked & (luck * q.gather(1, token[:, None]).squeeze(1) < chance)
        walk.go(node, stands)
        left = torch.where((asked & ~stands)[:, None], _residual(left, q), left)
        left = torch.where(stands[:, None], probs[:, node], left)
    after = draw(left, sampling.seed, walk.of(places))
    return walk.end(after, tokens)


def _residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """What is left of `p` once a token drawn from `q` was refused, [B, vocab]; adds up to 1."""
    import torch

    rest = (p - q).clamp(min=0)
    total = rest.sum(-1, keepdim=True)
    # Where nothing is left p equals q up to rounding, and whatever is drawn from p is right.
    return torch.where(total > 0, rest / total, p)


class _Walk:
    """Where B walks down their trees of K drafted tokens have come."""

    def __init__(self, batch: int, drafted: int, device: torch.device) -> None:
        import torch

        self._rows = torch.arange(batch, device=device)
        self.at = torch.zeros(batch, dtype=torch.int64, device=device)
        """[B] the node that stands last."""
        self._depth = torch.zeros(batch, dtype=torch.int64, device=device)
        self._path = torch.arange(drafted + 1, device=device).repeat(batch, 1)

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """[B]: the entry of `table` [B, K + 1] at the node that stands last."""
        return table.gather(1, self.at[:, None]).squeeze(1)

    def go(self, node: int, stands: torch.Tensor) -> None:
        """Where `stands` [B] bool, go down to `node`."""
        import torch

        self.at = torch.where(stands, node, self.at)
        self._depth = self._depth + stands
        old = self._path.gather(1, self._depth[:, None]).squeeze(1)
        self._path[self._rows, self._depth] = torch.where(stands, node, old)

    def end(self, after: torch.Tensor, tokens: torch.Tensor) -> Stand:
        """after: [B], behind the last node that stands. tokens: [B, K], the drafted ones."""
        return _stand(self._path, self._depth, tokens, after)
