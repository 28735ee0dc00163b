"""The model: bytes in, attention and a bend in each layer, logits of bytes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from warcore import Model, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore import ForwardBatch, Layer, ModelContext, ModelInfo

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layer], torch.Tensor]

END = 256


class Bytes:
    """Text as its UTF-8 bytes."""

    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        """One id for each byte."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """What is no UTF-8 becomes U+FFFD."""
        return bytes(i for i in ids if i != END).decode(errors="replace")

    def chat(self, prompt: str, system: str | None) -> list[int]:
        """No template: one after the other."""
        return self.encode("\n".join(filter(None, (system, prompt))))


class Network(Model):
    """Computes each token from its row's own tokens only, whatever else is in the batch."""

    def __init__(self, info: ModelInfo, ctx: ModelContext) -> None:
        """Draw the weights: the same on every device."""
        self.info, self.tokenizer = info, Bytes()
        draw = torch.Generator().manual_seed(3)
        width = info.hidden_size

        def weight(*shape: int) -> torch.Tensor:
            drawn = torch.randn(*shape, generator=draw, dtype=torch.float64)
            return drawn.to(ctx.device, ctx.dtype)

        self.tokens, self.places = weight(info.vocab_size, width), weight(info.max_context, width)
        self.qkv = [weight(width, 3 * width) / width**0.5 for _ in info.layers]
        self.head = weight(width, info.vocab_size)

    def forward(
        self, batch: ForwardBatch, attend: Attend, hidden_layers: tuple[int, ...] = ()
    ) -> Output:
        """The logits of the tokens that are asked for."""
        x = self.tokens[batch.tokens] + self.places[batch.positions]
        kept = {}
        for layer, qkv in zip(self.info.layers, self.qkv, strict=True):
            q, k, v = (x @ qkv).view(-1, 3, layer.q_heads, layer.head_dim).unbind(1)
            x = (x + attend(q, k, v, layer).flatten(1)).tanh()
            kept[layer.index] = x
        hidden = torch.stack([kept[i] for i in hidden_layers]) if hidden_layers else None
        asked = x if batch.logits_at is None else x.index_select(0, batch.logits_at)
        return Output(asked @ self.head, hidden)
