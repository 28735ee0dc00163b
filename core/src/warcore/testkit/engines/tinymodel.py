"""A whole model of the kit's own: small, the same on every machine, and all of it is attention."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch

from warcore.model import Layer, Model, ModelFamily, ModelInfo, Output
from warcore.testkit.stands.cell import CONTEXT, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warcore.batch import ForwardBatch
    from warcore.model import ModelContext

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layer], torch.Tensor]

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"
EOS = len(ALPHABET)
VOCAB = EOS + 1
SHARPNESS = 3.0
"""Of the queries: attention that looks at few tokens tells a wrong one from a right one."""


class Letters:
    """A token is a letter; the last token ends an answer."""

    eos_ids = frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        """ValueError for a letter that there is none of."""
        return [ALPHABET.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        """The letters."""
        return "".join(ALPHABET[token] for token in ids if token != EOS)

    def chat(self, prompt: str, system: str | None) -> list[int]:
        """One after the other."""
        return self.encode((system or "") + prompt)


class TinyModel(Model):
    """Layers of attention over seeded weights: a token depends on all that it may see."""

    def __init__(self, info: ModelInfo, dtype: torch.dtype, device: torch.device) -> None:
        self.info, self.tokenizer = info, Letters()
        draw = torch.Generator().manual_seed(13)

        def weight(*shape: int) -> torch.Tensor:
            drawn = torch.randn(*shape, generator=draw, dtype=torch.float64)
            return drawn.to(device, dtype)

        width, first = info.hidden_size, info.layers[0]
        inner = (first.q_heads + 2 * first.kv_heads) * first.head_dim
        self._letters, self._places = weight(VOCAB, width), weight(CONTEXT, width)
        self.embedding = self._letters
        self.inner = [weight(width, inner) / width**0.5 for _ in info.layers]
        self._head = weight(width, VOCAB)
        self.unembedding = self._head.t()

    def truncated(self, layers: int) -> TinyModel:
        """Its first layers."""
        cut = copy.copy(self)
        cut.info = attrs.evolve(self.info, layers=self.info.layers[:layers])
        cut.inner = self.inner[:layers]
        return cut

    def forward(
        self, batch: ForwardBatch, attend: Attend, hidden_layers: tuple[int, ...] = ()
    ) -> Output:
        """Logits [N, vocab]; hidden states are those after each layer."""
        stream = self._letters[batch.tokens] + self._places[batch.positions]
        kept = {}
        for layer, inner in zip(self.info.layers, self.inner, strict=True):
            heads = (stream @ inner).unflatten(1, (-1, layer.head_dim))
            q, k, v = heads.split((layer.q_heads, layer.kv_heads, layer.kv_heads), 1)
            stream = (stream + attend(SHARPNESS * q, k, v, layer).flatten(1)).tanh()
            kept[layer.index] = stream
        asked = [kept[index] for index in hidden_layers]
        if batch.logits_at is not None:
            stream = stream.index_select(0, batch.logits_at)
        return Output(stream @ self._head, torch.stack(asked) if asked else None)


class Tiny(ModelFamily):
    """`EngineConfig(model=tiny(shape))`."""

    shape: ClassVar[Shape] = Shape()

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        """Its own name."""
        return ref if ref == cls.__name__ else None

    @classmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:
        """As wide as its query heads."""
        del options
        shape = cls.shape
        layers = tuple(
            Layer(i, shape.q_heads, shape.kv_heads, shape.head_dim, shape.head_dim**-0.5, window)
            for i, window in enumerate(shape.windows)
        )
        width = shape.q_heads * shape.head_dim
        inner = width + 2 * shape.kv_heads * shape.head_dim
        parameters = (2 * VOCAB + CONTEXT + len(layers) * inner) * width
        return ModelInfo(ref, layers, VOCAB, width, CONTEXT, parameters)

    @classmethod
    def load(cls, ref: str, ctx: ModelContext) -> TinyModel:
        """Drawn, not read."""
        return TinyModel(cls.describe(ref, ctx.options), ctx.dtype, ctx.device)


def tiny(shape: Shape) -> Any:
    """The family whose model asks a backend for `shape`, but for trees: no step here drafts."""
    return type("Tiny", (Tiny,), {"shape": shape})
