"""Batching: what a forward is given, made on the device from the relay and the live table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.batch import ForwardBatch
from warcore.contract import ForwardMode

if TYPE_CHECKING:
    import torch

    from warcore.launch import Launch
    from warcore.limits import Limits
    from warcore.relay import Relay
    from warcore.shared import SharedTables


class Batching:
    """Makes the batches of launches, on the forward stream.

    The write locations are a shared read of the core's own, and it comes first in every step.
    """

    def __init__(self, tables: SharedTables, relay: Relay, limits: Limits) -> None:
        import torch

        self._tables = tables
        self._relay = relay
        self._drafted = limits.drafted
        device = tables.req_to_token.device
        self._counting = torch.arange(limits.max_tokens + 1, dtype=torch.int64, device=device)

    def batch(self, launch: Launch) -> ForwardBatch:
        """The first batch of a launch. Where tokens are drafted that is a DECODE with `ahead`:
        what is verified is made of it.
        """
        if launch.mode.is_prefill:
            return self._extend_batch(launch)
        return self._decode_batch(launch)

    def _decode_batch(self, launch: Launch) -> ForwardBatch:
        """Everything but the rows comes from the relay and the live table."""
        rows = launch.inputs.rows
        positions = self._relay.lengths.index_select(0, rows)
        size = rows.shape[0]
        index = self._counting[: size + 1]
        ahead = self._ahead_slots(rows, positions) if self._drafted else None
        return ForwardBatch(
            mode=ForwardMode.DECODE,
            size=size,
            padded_size=size,
            padded_tokens=size,
            tokens=self._relay.tokens.index_select(0, rows),
            rows=rows,
            seq_lens=(positions + 1).int(),
            q_start=index.int(),
            q_row=index[:-1],
            positions=positions,
            out_slots=self._slots(rows, positions) if ahead is None else ahead[:, 0],
            max_seq_len=launch.max_seq_len - self._drafted,
            ahead=ahead,
        )

    def _ahead_slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[B, K + 1] i64: slots of the newest token and of the drafted ones, each its own."""
        at = positions[:, None] + self._counting[: self._drafted + 1]
        return self._slots(rows[:, None], at)

    def _extend_batch(self, launch: Launch) -> ForwardBatch:
        import torch

        given = launch.inputs
        assert given.prefixes is not None
        assert given.lens is not None
        assert given.tokens is not None
        size, count = given.rows.shape[0], given.tokens.shape[0]
        prefixes = torch.where(
            given.prefixes < 0, self._relay.lengths.index_select(0, given.rows), given.prefixes
        )
        q_start = torch.zeros(size + 1, dtype=torch.int64, device=given.rows.device)
        torch.cumsum(given.lens, 0, out=q_start[1:])
        index = self._counting
        q_row = torch.repeat_interleave(index[:size], given.lens, output_size=count)
        shift = (prefixes - q_start[:-1]).index_select(0, q_row)
        positions = index[:count] + shift
        row_of = given.rows.index_select(0, q_row)
        relayed = self._relay.tokens.index_select(0, row_of)
        return ForwardBatch(
            mode=launch.mode,
            size=size,
            padded_size=size,
            padded_tokens=count,
            tokens=torch.where(given.tokens < 0, relayed, given.tokens),
            rows=given.rows,
            seq_lens=(prefixes + given.lens).int(),
            q_start=q_start.int(),
            q_row=q_row,
            positions=positions,
            out_slots=self._slots(row_of, positions),
            max_seq_len=launch.max_seq_len,
            max_q_len=max(entry.tokens for entry in launch.entries),
            extend_lens=tuple(entry.tokens for entry in launch.entries),
            logits_at=q_start[1:] - 1,
        )

    def _slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where the tokens at `positions` of `rows` are written, i64. Reads the live table."""
        table = self._tables.req_to_token
        at = rows * table.shape[1] + positions
        return table.view(-1).index_select(0, at.flatten()).long().view(at.shape)
