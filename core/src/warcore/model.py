"""Models as plugins: a family recognises a reference, describes it cheaply, and loads it.

A model calls `attend(q, k, v, layer)` for attention and knows nothing of pages, rows or streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

import attrs

from warcore.options import NoOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from warcore.batch import ForwardBatch

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Layer"], torch.Tensor]


@attrs.frozen
class Layer:
    """One attention layer: sizes, score scale, and its window in tokens (None: full attention)."""

    index: int
    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


@attrs.frozen
class ModelInfo:
    """What is known of a model before its weights are loaded."""

    name: str
    """The canonical reference, as `recognises` returned it."""
    layers: tuple[Layer, ...]
    vocab_size: int
    hidden_size: int
    max_context: int
    """Tokens that one sequence may hold."""
    parameters: int
    """Number of weights; times the dtype's size it is the memory they need."""


@attrs.frozen
class ModelContext:
    """What a family is given to load with."""

    device: torch.device
    dtype: torch.dtype
    options: object
    progress: Callable[[int, int], None] | None = None
    """Called with (bytes or tensors done, of how many) while weights load."""


@attrs.frozen
class Output:
    """What a forward gives: logits [N, vocab] for `batch.logits_at` (or every token if None)."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None
    """[layers asked for, T, hidden_size], in the order of `hidden_layers`."""


class Tokenizer(Protocol):
    """Text to token ids and back."""

    eos_ids: frozenset[int]
    """Tokens that end an answer."""

    def encode(self, text: str) -> list[int]:
        """Ids of raw text; the family's special start token is added if its models want one."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens; incomplete UTF-8 becomes U+FFFD."""

    def chat(self, prompt: str, system: str | None) -> list[int]:
        """Ids of one user message under the model's chat template, up to where the answer starts.

        system None: the template's own default.
        """


class Model(ABC):
    """A loaded model."""

    info: ModelInfo
    tokenizer: Tokenizer
    embedding: torch.Tensor | None = None
    """[vocab, hidden_size]: what its tokens are looked up in, for drafts that share it; None: it
    shows none."""
    unembedding: torch.Tensor | None = None
    """[vocab, hidden_size]: what gives the logits of its last hidden states; None: it shows none.
    """

    @abstractmethod
    def forward(
        self, batch: ForwardBatch, attend: Attend, hidden_layers: tuple[int, ...] = ()
    ) -> Output:
        """One forward of `batch.tokens` at `batch.positions`, on the current stream.

        Calls `attend(q, k, v, layer)` once per layer with q [T, q_heads, head_dim] and k, v
        [T, kv_heads, head_dim]; it returns [T, q_heads, head_dim]. No host sync.
        """

    def truncated(self, layers: int) -> Model | None:  # noqa: ARG002
        """Its first `layers` layers, with its weights and its head; None: it cannot be cut.

        layers: from 1 up to one fewer than it has.
        """
        return None


class ModelFamily(ABC):
    """The plugin kind `model`: one entry point per word that a person types."""

    Options: ClassVar[type] = NoOptions
    default_rank: ClassVar[int] = 0

    @classmethod
    @abstractmethod
    def recognises(cls, ref: str) -> str | None:
        """A canonical reference if `ref` (name, name:argument or path) is this family's own.

        Reads headers at most and imports no torch. ModelError if the reference is plainly this
        family's but wrong (unknown preset, missing file, truncated header).
        """

    @classmethod
    @abstractmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:
        """Facts of a canonical reference, from headers alone; imports no torch, reads no weights.

        ModelError for an architecture or a file that it cannot serve.
        """

    @classmethod
    @abstractmethod
    def load(cls, ref: str, ctx: ModelContext) -> Model:
        """The model of a canonical reference, its weights on `ctx.device`.

        ModelError for a missing shard, tensor or tokenizer, or a wrong shape.
        """
