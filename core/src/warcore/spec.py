"""Speculative algorithms: what they are given, what they propose, and what they declare.

An algorithm proposes; the core verifies and accepts, so that being lossless is not the author's
burden. Drafts, accepted lengths and draft state stay on the device from one step to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import attrs

from warcore.options import NoOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from warcore.backend import TensorSpec
    from warcore.batch import ForwardBatch
    from warcore.contract import ForwardMode, SharedReadEnds
    from warcore.model import Model, ModelInfo
    from warcore.modelrunner import ModelRunner


@attrs.frozen
class DraftSpec:
    """What an algorithm would have to serve; `why_not` judges it before anything is allocated."""

    target: ModelInfo
    num_tokens: int
    """K: tokens that it drafts for each request and step."""
    topk: int
    """Alternatives at each position; 1: a chain."""
    max_context: int
    """Tokens that one sequence may hold."""
    dtype: torch.dtype
    device: torch.device


@attrs.frozen(eq=False)
class SpecContext:
    """What an algorithm is built from. Fields are only ever added; authors never build one."""

    spec: DraftSpec
    target: ModelRunner
    make_runner: Callable[..., ModelRunner]
    """make_runner(model, captured=frozenset({DECODE, DRAFT_EXTEND})): a runner for a draft model,
    with a backend and a KV cache of its own; its rows, positions and slots are the target's. Of the
    steps of the `captured` modes it replays those that the graph runner can. Only while the
    algorithm is built."""
    model: Model
    """The target's model: a draft may share its weights."""
    load: Callable[[str], Model]
    """The model of a reference, as a person types it, in the target's dtype and on its device."""
    relay: Mapping[str, torch.Tensor]
    """[rows + 1, *shape] of each name of `relay(spec)`: forward stream only, row 0 is padding."""
    options: object

    @property
    def num_tokens(self) -> int:
        """K."""
        return self.spec.num_tokens


@attrs.frozen(eq=False)
class Draft:
    """What an algorithm proposes for B requests: K tokens each."""

    tokens: torch.Tensor
    """[B, K] i64."""
    parents: torch.Tensor | None = None
    """[B, K] i64: which node each token follows; 0 is the token before, i the i-th drafted one.
    A parent comes before its children. None: a chain."""
    probs: torch.Tensor | None = None
    """[B, K, vocab]: the distribution that each token was drawn from, independently of the other
    children of its parent. None: the tokens were not drawn, and count as they are."""
    lengths: torch.Tensor | None = None
    """[B] i64: how many of each request's tokens are meant, 0 to K; None: all. With `probs` they
    depend on no token that was drawn: leaving out what looks unlikely would change what is said."""


@attrs.frozen(eq=False)
class Accepted:
    """What a pass of the target has settled, on the device."""

    tokens: torch.Tensor
    """[B, N] i64: the tokens that follow, of which the first `lengths` count; N is K + 1 after a
    verify, 1 after a prefill."""
    lengths: torch.Tensor
    """[B] i64, 1 to N."""
    hidden: torch.Tensor | None = None
    """[layers asked for, T, hidden_size], of the tokens of the batch that comes with it."""


class SpecAlgorithm(ABC):
    """The plugin kind `spec_algo`. It declares data, never an identity that the core asks for.

    All methods but the class's own run on the forward stream, in its order.
    """

    later_prefill_reader: ClassVar[bool] = True
    """Whether a draft reads shared buffers after the target's prefill. True is the safe answer."""
    tree: ClassVar[bool] = False
    """Whether it may propose several alternatives at a position."""
    default_tokens: ClassVar[int] = 4
    """K where nobody says."""
    Options: ClassVar[type] = NoOptions
    check_options: ClassVar[Mapping[str, str]] = {}
    """Options that the test kit checks it with, as a person would give them: those with which it
    serves a target that nobody has trained anything for."""
    default_rank: ClassVar[int] = 0

    @classmethod
    def why_not(cls, spec: DraftSpec) -> list[str]:  # noqa: ARG003
        """Every reason why it cannot serve `spec`; [] if it can. Allocates nothing."""
        return []

    @classmethod
    def relay(cls, spec: DraftSpec) -> dict[str, TensorSpec]:  # noqa: ARG003
        """State of each row that one step leaves for the next, on the device.

        Zero at the start of the engine, and then whatever was written: a row that comes to another
        request still holds what the one before has left.
        """
        return {}

    @classmethod
    def hidden_layers(cls, info: ModelInfo) -> tuple[int, ...]:  # noqa: ARG003
        """The target's layers whose outputs it wants in `Accepted.hidden`."""
        return ()

    def __init__(self, ctx: SpecContext) -> None:
        """Build draft models and their runners; run nothing."""
        self.ctx = ctx

    @abstractmethod
    def draft(self, batch: ForwardBatch) -> Draft:
        """Propose what follows the newest token of each request. No host sync.

        batch: a DECODE batch of those tokens. A draft runner executes it, then
        `batch.after(tokens)` for each further position. Positions behind the end of a request are
        computed like any other; nothing that is drafted there is accepted.
        """

    def draft_extend(self, batch: ForwardBatch, accepted: Accepted) -> None:  # noqa: B027
        """Take note of what was accepted. No host sync.

        After a verify: a DRAFT_EXTEND batch of the newest token and the accepted ones, K + 1 of
        each request, of which those beyond `accepted.lengths` mean nothing. After every prefill
        step: the step's own batch, and the token that follows each request's last one.
        """

    def last_shared_read_runner(
        self,
        forward_batch: ForwardBatch,  # noqa: ARG002
    ) -> ModelRunner | None:
        """The runner of the step's last phase that reads shared buffers; None: the target's."""
        return None

    def shared_read_ends(
        self,
        forward_mode: ForwardMode,  # noqa: ARG002
    ) -> SharedReadEnds | None:
        """Where reads of its own, outside any ModelRunner, end; None: it has none."""
        return None
