"""ForwardBatch: one step as a model and a backend see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from warcore.contract import ForwardMode
from warcore.errors import WiringError

if TYPE_CHECKING:
    import torch


@attrs.frozen(cache_hash=True)
class Bucket:
    """A step that is captured once and replayed for every smaller one: its shapes, and its key."""

    mode: ForwardMode
    rows: int
    """B of the captured step."""
    tokens: int
    """T of the captured step."""
    max_seq_len: int
    """The longest sequence that a replay serves."""
    key: int = 0
    """The backend's `graph_key` of these steps."""

    @property
    def max_q_len(self) -> int:
        """The most tokens of one request that a replay serves."""
        return self.tokens if self.mode.is_prefill else self.tokens // self.rows

    def holds(self, batch: ForwardBatch) -> bool:
        """Whether a step of this kind and these shapes has room for `batch`."""
        return (
            batch.mode is self.mode
            and batch.padded_size <= self.rows
            and batch.padded_tokens <= self.tokens
            and batch.max_seq_len <= self.max_seq_len
            and batch.max_q_len <= self.max_q_len
        )

    def __str__(self) -> str:
        what = self.mode.value.replace("_", " ")
        return f"{what} of {self.rows} x {self.tokens // self.rows} up to {self.max_seq_len}"


def _most_tokens(batch: ForwardBatch) -> int:
    return 1 if batch.mode is ForwardMode.DECODE else batch.padded_tokens


@attrs.frozen(eq=False)
class ForwardBatch:
    """One step as a model and a backend see it. PRIVATE to the step: copies, no request inside.
    The core wrote its tensors, and reads some of them when the forward is over: nobody else writes.

    B requests and T tokens, padding included; equal to the live counts when the step is eager.
    Padding rows point at row 0 and slot 0, which hold no request's data; they come after the live
    ones, and except in DECODE they have no tokens: padding tokens lie beyond `q_start[B]`.
    """

    mode: ForwardMode
    size: int
    """Live requests."""
    padded_size: int
    """B."""
    padded_tokens: int
    """T."""
    tokens: torch.Tensor
    """[T] i64, the input tokens."""
    rows: torch.Tensor
    """[B] i64, each request's row of `req_to_token`."""
    seq_lens: torch.Tensor
    """[B] i32, tokens of the sequence after this step's tokens are written."""
    q_start: torch.Tensor
    """[B+1] i32, where each request's tokens start in T."""
    q_row: torch.Tensor
    """[T] i64, which request (0 to B-1) each token belongs to."""
    positions: torch.Tensor
    """[T] i64, each token's position in its sequence."""
    out_slots: torch.Tensor
    """[T] i64, the KV slot that each token's key and value go to."""
    max_seq_len: int
    """Host upper bound of `seq_lens`."""
    extend_lens: tuple[int, ...] = ()
    """New tokens of each request, on the host; EXTEND and MIXED only."""
    logits_at: torch.Tensor | None = None
    """[N] i64, the tokens of T whose logits the step needs; None: all of them."""
    tree_mask: torch.Tensor | None = None
    """[T, K+1] bool, which drafted tokens each token sees."""
    bucket: Bucket | None = None
    """The captured step that this batch is the static view of; None: the step runs eagerly."""
    ahead: torch.Tensor | None = None
    """[B, N] i64, the KV slots of each request's positions from its token's on; in the batches of
    a draft only."""
    max_q_len: int = attrs.field(default=attrs.Factory(_most_tokens, takes_self=True))
    """Host upper bound of any request's tokens in this step; where nobody says less, 1 in DECODE
    and else T."""

    def after(self, tokens: torch.Tensor) -> ForwardBatch:
        """The DECODE batch of the next position, with `tokens` [B] i64; of a draft's batch only.

        WiringError beyond the last position that may be drafted.
        """
        if self.ahead is None or self.ahead.shape[1] < 2:
            raise WiringError(
                "a draft goes on beyond the last position that it may draft",
                next="execute batch, then batch.after(tokens) at most num_tokens times",
            )
        return attrs.evolve(
            self,
            tokens=tokens,
            seq_lens=self.seq_lens + 1,
            positions=self.positions + 1,
            out_slots=self.ahead[:, 1],
            max_seq_len=self.max_seq_len + 1,
            ahead=self.ahead[:, 1:],
        )
