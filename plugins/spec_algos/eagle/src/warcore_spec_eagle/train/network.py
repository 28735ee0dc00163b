"""Network: the head as it is trained, over whole texts and several drafted tokens ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch
from torch import nn
from torch.nn import functional

from warcore_spec_eagle.head import EPS, rotary, rotate
from warcore_spec_eagle.weights import HeadWeights

if TYPE_CHECKING:
    from warcore import Model


@attrs.frozen(eq=False)
class Level:
    """What the head says at each place after so many drafted tokens."""

    feature: torch.Tensor
    """[N, L - 1, hidden]: the hidden state one place on."""
    normed: torch.Tensor
    """The same, as `Network.rows` are multiplied by it: that gives the token two places on."""


class Network(nn.Module):
    """The computation of `DraftHead`, with gradients, and without a cache.

    The first level follows the target's hidden states. Each later one follows what the level
    before has foreseen, as a draft does from its second token on; there a place sees the first
    level's keys up to where its own draft began, then its own (training-time test: Li et al.
    2025, EAGLE-3).
    """

    def __init__(self, weights: HeadWeights, target: Model) -> None:
        super().__init__()
        assert target.embedding is not None
        self.sizes = weights.sizes
        self.to_target = weights.to_target
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(each.float()) for name, each in weights.tensors.items()}
        )
        self._embedding = target.embedding
        self._rows = None
        if not weights.sizes.own_rows:
            assert target.unembedding is not None
            self._rows = target.unembedding.index_select(0, weights.to_target).float()

    def trained(self) -> HeadWeights:
        """The weights as they are now."""
        tensors = {name: each.detach().clone() for name, each in self.weights.items()}
        return HeadWeights(self.sizes, tensors, self.to_target)

    @property
    def rows(self) -> torch.Tensor:
        """[draft_vocab, hidden]: what gives the logits."""
        return self.weights["rows"] if self._rows is None else self._rows

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, levels: int) -> list[Level]:
        """tokens [N, L], hidden [N, L, hidden_size]: texts, and what the target made of them."""
        following = self._embedding[tokens[:, 1:]].float()
        token = self._normed("token_norm", following)
        turns = rotary(token.shape[1], self.sizes.head_dim, token.device, token.dtype).unbind(1)
        feature = hidden[:, :-1].float()
        said: list[Level] = []
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(levels):
            joined = torch.cat((token, self._normed("feature_norm", feature)), -1)
            x = functional.linear(joined, self.weights["join"])
            x = x + functional.linear(self._attended(x, turns, seen), self.weights["o"])
            normed = self._normed("mlp_norm", x)
            gate, up = (functional.linear(normed, self.weights[name]) for name in ("gate", "up"))
            x = x + functional.linear(functional.silu(gate) * up, self.weights["down"])
            said.append(Level(x, self._normed("norm", x)))
            feature = functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return said

    def _attended(
        self,
        x: torch.Tensor,
        turns: tuple[torch.Tensor, ...],
        seen: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """seen: keys and values [N, heads, L, head_dim] of the levels before; gets this one's."""
        sizes, length = self.sizes, x.shape[1]
        heads = functional.linear(self._normed("attn_norm", x), self.weights["qkv"])
        heads = heads.view(*heads.shape[:2], -1, sizes.head_dim)
        turned = sizes.q_heads + sizes.kv_heads
        qk = rotate(heads[..., :turned, :], *turns)
        q, k = qk[..., : sizes.q_heads, :], qk[..., sizes.q_heads :, :]
        group = sizes.q_heads // sizes.kv_heads
        k, v = (e.repeat_interleave(group, -2).transpose(1, 2) for e in (k, heads[..., turned:, :]))
        q = q.transpose(1, 2) * sizes.head_dim**-0.5
        seen.append((k, v))
        depth = len(seen) - 1
        scores = q @ seen[0][0].transpose(-1, -2)
        places = torch.arange(length, device=x.device)
        behind = places[:, None] - places
        scores = scores.masked_fill(behind < depth, -torch.inf)
        own = [_back(pair, depth - at) for at, pair in enumerate(seen) if at > 0]
        columns = [(q * keys).sum(-1, keepdim=True) for keys, _ in own]
        shares = torch.cat((scores, *columns), -1).float().softmax(-1).to(x.dtype)
        mixed = shares[..., :length] @ seen[0][1]
        for at, (_, values) in enumerate(own):
            mixed = mixed + shares[..., length + at, None] * values
        return mixed.transpose(1, 2).flatten(2)

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weights[name].to(x.dtype), EPS)


def _back(pair: tuple[torch.Tensor, torch.Tensor], places: int) -> tuple[torch.Tensor, ...]:
    """Keys and values of so many places before each one; zeros where there is none."""
    length = pair[0].shape[2]
    return tuple(functional.pad(each, (0, 0, places, 0))[:, :, :length] for each in pair)
