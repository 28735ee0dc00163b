"""DraftHead: one layer over the target's hidden states and the tokens that follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from warcore import Layer, Model, ModelInfo, Output
from warcore_spec_eagle.matrices import matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore import ForwardBatch
    from warcore_spec_eagle.weights import HeadWeights

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layer], torch.Tensor]

EPS: Final = 1e-5
THETA: Final = 10000.0
"""Base of the rotary positions."""


class DraftHead(Model):
    """At position p it joins the hidden state of token p with token p + 1, and foresees p + 2.

    Its batches hold the tokens that follow; what they follow lies in `features`, where whoever
    executes it writes it before.
    """

    def __init__(
        self, weights: HeadWeights, target: Model, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """target: whose embedding it shares, and whose rows give its logits, unless it has some."""
        assert target.embedding is not None
        sizes, read = weights.sizes, dict(weights.tensors)
        self.to_target = weights.to_target.to(device)
        self.embedding = self._embedding = target.embedding
        if sizes.own_rows:
            rows = read.pop("rows")
        else:
            assert target.unembedding is not None
            rows = target.unembedding.index_select(0, self.to_target)
        layer = Layer(0, sizes.q_heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim**-0.5)
        self.info = ModelInfo(
            name=f"eagle head of {target.info.name}",
            layers=(layer,),
            vocab_size=sizes.draft_vocab,
            hidden_size=sizes.hidden,
            max_context=target.info.max_context,
            parameters=sum(each.numel() for each in read.values()) + rows.numel(),
        )
        self.tokenizer = target.tokenizer
        placed = {name: each.to(device, dtype) for name, each in read.items()}
        self._norms = {name: each for name, each in placed.items() if each.dim() == 1}
        self._matrices = {name: matrix(each) for name, each in placed.items() if each.dim() == 2}
        self._rows = matrix(rows.to(device, dtype))
        self._rotary = rotary(target.info.max_context, sizes.head_dim, device, dtype)
        self._features: torch.Tensor | None = None
        self._prompt: torch.Tensor | None = None

    def keep_features(self, most: int) -> None:
        """Room for what `most` tokens of a decode or of a draft-extend follow, at one address."""
        like = self._norms["norm"]
        self._features = torch.zeros((most, like.shape[0]), dtype=like.dtype, device=like.device)

    def follow(self, features: torch.Tensor, *, prompt: bool) -> None:
        """features: [T, hidden_size], what the T tokens of the next batch follow.

        Replayed steps look for them where the captured one did. Prompts are longer than all of
        these, and are never replayed: theirs stay where they are.
        """
        if prompt:
            self._prompt = features
        else:
            assert self._features is not None
            self._features[: features.shape[0]].copy_(features)

    def forward(
        self,
        batch: ForwardBatch,
        attend: Attend,
        hidden_layers: tuple[int, ...] = (),  # noqa: ARG002
    ) -> Output:
        """Logits [N, draft_vocab]; its hidden states foresee those of the target."""
        tokens, linear = batch.tokens, self._matrices
        kept = self._prompt if batch.mode.is_prefill else self._features
        assert kept is not None
        token = self._normed("token_norm", self._embedding.index_select(0, tokens))
        feature = self._normed("feature_norm", kept[: tokens.shape[0]])
        x = linear["join"](torch.cat((token, feature), 1))
        x = x + linear["o"](self._attended(x, batch, attend))
        normed = self._normed("mlp_norm", x)
        x = x + linear["down"](functional.silu(linear["gate"](normed)) * linear["up"](normed))
        ends = x if batch.logits_at is None else x.index_select(0, batch.logits_at)
        return Output(self._rows(self._normed("norm", ends)), x[None])

    def _attended(self, x: torch.Tensor, batch: ForwardBatch, attend: Attend) -> torch.Tensor:
        (layer,) = self.info.layers
        heads = self._matrices["qkv"](self._normed("attn_norm", x))
        heads = heads.view(x.shape[0], -1, layer.head_dim)
        cos, sin = self._rotary.index_select(0, batch.positions).unbind(1)
        turned = layer.q_heads + layer.kv_heads
        qk = rotate(heads[:, :turned], cos, sin)
        q, k = qk[:, : layer.q_heads], qk[:, layer.q_heads :]
        return attend(q, k, heads[:, turned:], layer).reshape(x.shape[0], -1)

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._norms[name], EPS)


def rotary(positions: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[positions, 2, 1, head_dim]: cosines and sines. Source: Su et al. 2021, RoFormer."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    steps = torch.arange(0, head_dim, 2, dtype=wide) / head_dim
    angles = torch.outer(torch.arange(positions, dtype=wide), THETA**-steps).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()), 1).unsqueeze(2).to(device, dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., heads, head_dim] turned by its positions, halves against each other."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
