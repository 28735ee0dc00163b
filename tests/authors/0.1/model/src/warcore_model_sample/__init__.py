"""Sample: a model family with one model, which needs no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore import Layer, ModelFamily, ModelInfo

if TYPE_CHECKING:
    from warcore import Model, ModelContext

VOCAB, HEADS, DIM, LAYERS, CONTEXT = 257, 2, 16, 2, 256


class Sample(ModelFamily):
    """`--model sample`."""

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        """Its name, in any case."""
        return "sample" if ref.lower() == "sample" else None

    @classmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:
        """Facts without weights, and without torch."""
        layers = tuple(Layer(i, HEADS, HEADS, DIM, DIM**-0.5) for i in range(LAYERS))
        width = HEADS * DIM
        weights = width * (2 * VOCAB + CONTEXT) + LAYERS * width * 3 * width
        return ModelInfo(ref, layers, VOCAB, width, CONTEXT, weights)

    @classmethod
    def load(cls, ref: str, ctx: ModelContext) -> Model:
        """The model, its weights drawn from a seed."""
        from warcore_model_sample.network import Network

        return Network(cls.describe(ref, ctx.options), ctx)
