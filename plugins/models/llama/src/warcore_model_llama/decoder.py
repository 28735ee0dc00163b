"""The decoder: RMSNorm, attention through `attend`, SwiGLU, residual sums, head."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import attrs
import torch
from torch.nn import functional

from warcore import Model, ModelError, Output
from warcore_model_llama.huge_pages import back_by_huge_pages
from warcore_model_llama.linear import Plain, Projection, gated_projection, projection
from warcore_model_llama.rope import rotary_table, rotate

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore import ForwardBatch, Layer, ModelInfo, Tokenizer
    from warcore_model_llama.config import LlamaConfig
    from warcore_model_llama.weights import Weights

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layer], torch.Tensor]


class Block:
    """One decoder layer."""

    def __init__(self, layer: Layer, weights: Weights, eps: float) -> None:
        read = weights.layer(layer.index)
        self.layer = layer
        self.eps = eps
        self.attn_norm = read("attn_norm")
        self.qkv = projection(torch.cat((read("q"), read("k"), read("v"))))
        self.o = projection(read("o"))
        self.mlp_norm = read("mlp_norm")
        self.gate_up = gated_projection(read("gate"), read("up"))
        self.down = projection(read("down"))
        self._heads = layer.q_heads + 2 * layer.kv_heads
        self._rotated = layer.q_heads + layer.kv_heads

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """x [T, hidden] after this layer; may be written over x."""
        layer, tokens = self.layer, x.shape[0]
        normed = functional.rms_norm(x, self.attn_norm.shape, self.attn_norm, self.eps)
        heads = self.qkv.linear(normed).view(tokens, self._heads, layer.head_dim)
        # q and k lie side by side, so that one rotation serves both.
        qk = rotate(heads[:, : self._rotated], cos, sin)
        q, k, v = qk[:, : layer.q_heads], qk[:, layer.q_heads :], heads[:, self._rotated :]
        x = self.o.linear_add(attend(q, k, v, layer).reshape(tokens, -1), x)
        normed = functional.rms_norm(x, self.mlp_norm.shape, self.mlp_norm, self.eps)
        return self.down.linear_add(self.gate_up.gated(normed), x)


class Llama(Model):
    """A loaded Llama-family model."""

    def __init__(
        self, config: LlamaConfig, info: ModelInfo, tokenizer: Tokenizer, weights: Weights
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.eps = config.norm_eps
        self.embed = self.embedding = weights.read("embed")
        self.blocks = [Block(layer, weights, config.norm_eps) for layer in info.layers]
        self.norm = weights.read("norm")
        head = self.embed if config.tied else weights.read("head")
        self.head: Projection = projection(head)
        # One that was packed has given its own matrix back.
        shown = config.tied or isinstance(self.head, Plain)
        self.unembedding = head if shown else None
        self.rotary = rotary_table(
            config, self.embed.device, self.embed.dtype, weights.rope_factors()
        )
        if self.embed.device.type == "cpu":
            matrices = [m for b in self.blocks for m in (b.qkv, b.o, b.gate_up, b.down)]
            back_by_huge_pages(span for m in (self.head, *matrices) for span in m.spans())

    def forward(
        self, batch: ForwardBatch, attend: Attend, hidden_layers: tuple[int, ...] = ()
    ) -> Output:
        """Logits come in the model's dtype.

        The hidden state of a layer is the residual stream after it, before the final norm.
        """
        self._check(hidden_layers)
        x = self.embed.index_select(0, batch.tokens)
        cos, sin = self.rotary.index_select(0, batch.positions).unbind(1)
        kept: dict[int, torch.Tensor] = {}
        for index, block in enumerate(self.blocks):
            x = block.forward(x, cos, sin, attend)
            if index in hidden_layers:
                # The next layer may write over x.
                kept[index] = x.clone()
        if batch.logits_at is not None:
            x = x.index_select(0, batch.logits_at)
        x = functional.rms_norm(x, self.norm.shape, self.norm, self.eps)
        hidden = torch.stack([kept[index] for index in hidden_layers]) if hidden_layers else None
        return Output(self.head.linear(x), hidden)

    def truncated(self, layers: int) -> Llama:
        """Its first layers, the final norm and the head."""
        cut = copy.copy(self)
        cut.blocks = self.blocks[:layers]
        cut.info = attrs.evolve(
            self.info, name=f"{self.info.name}, {layers} layers", layers=self.info.layers[:layers]
        )
        return cut

    def _check(self, hidden_layers: tuple[int, ...]) -> None:
        for index in hidden_layers:
            if not 0 <= index < len(self.blocks):
                raise ModelError(
                    f"{self.info.name}: hidden state of layer {index} asked for, "
                    f"but its layers are 0 to {len(self.blocks) - 1}",
                    next=f"ask for hidden states of layers 0 to {len(self.blocks) - 1}",
                )
