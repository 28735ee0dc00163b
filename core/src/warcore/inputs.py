"""Static inputs: the memory that a captured step reads its batch from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warcore.batch import Bucket, ForwardBatch
from warcore.contract import ForwardMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


class StaticInputs:
    """One set of buffers for all buckets of a runner; a bucket's view is their front.

    Steps follow one another on one stream, so each overwrites what the one before was given.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        static: Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor],
        *,
        tree: bool,
    ) -> None:
        import torch

        rows = max((bucket.rows for bucket in buckets), default=0)
        tokens = max((bucket.tokens for bucket in buckets), default=0)
        self._static = static
        self._tree = tree
        self._most_tokens = tokens
        self._tokens = static("inputs.tokens", (tokens,), torch.int64)
        self._rows = static("inputs.rows", (rows,), torch.int64)
        self._seq_lens = static("inputs.seq_lens", (rows,), torch.int32)
        self._q_start = static("inputs.q_start", (rows + 1,), torch.int32)
        self._q_row = static("inputs.q_row", (tokens,), torch.int64)
        self._positions = static("inputs.positions", (tokens,), torch.int64)
        self._out_slots = static("inputs.out_slots", (tokens,), torch.int64)
        self._logits_at = static("inputs.logits_at", (rows,), torch.int64)
        # In a decode step token b is row b's, padding or not: these are never written again.
        self._each_start = static("inputs.each_start", (rows + 1,), torch.int32)
        self._each_row = static("inputs.each_row", (rows,), torch.int64)
        torch.arange(rows + 1, out=self._each_start)
        torch.arange(rows, out=self._each_row)
        self._views: dict[Bucket, ForwardBatch] = {}

    def load(self, batch: ForwardBatch, bucket: Bucket) -> ForwardBatch:
        """Write `batch`, then padding up to `bucket`; the view, with the batch's host facts."""
        import torch

        view = self._views.get(bucket)
        if view is None:
            view = self._views[bucket] = self._view(bucket)
        # Of one dtype: CUDA then copies them in one launch.
        targets = [view.tokens, view.positions, view.out_slots, view.rows]
        sources = [batch.tokens, batch.positions, batch.out_slots, batch.rows]
        lengths, rows = view.seq_lens, batch.padded_size
        if rows < bucket.rows or batch.padded_tokens < bucket.tokens:
            for place, (target, source) in enumerate(zip(targets, sources, strict=True)):
                count = source.shape[0]
                targets[place] = target[:count]
                target[count:].fill_(0)
            # A padding row has one token, in slot 0: a row of none at all has no softmax.
            lengths = view.seq_lens[:rows]
            view.seq_lens[rows:].fill_(1)
        torch._foreach_copy_(targets, sources)
        lengths.copy_(batch.seq_lens)
        if batch.mode is not ForwardMode.DECODE:
            self._load_starts(batch, view)
        return ForwardBatch(
            mode=view.mode,
            size=batch.size,
            padded_size=view.padded_size,
            padded_tokens=view.padded_tokens,
            tokens=view.tokens,
            rows=view.rows,
            seq_lens=view.seq_lens,
            q_start=view.q_start,
            q_row=view.q_row,
            positions=view.positions,
            out_slots=view.out_slots,
            max_seq_len=view.max_seq_len,
            max_q_len=view.max_q_len,
            extend_lens=batch.extend_lens,
            logits_at=view.logits_at,
            tree_mask=view.tree_mask,
            bucket=bucket,
        )

    @staticmethod
    def _load_starts(batch: ForwardBatch, view: ForwardBatch) -> None:
        """Which tokens are whose: padding rows have none, padding tokens lie beyond the end."""
        rows, tokens = batch.padded_size, batch.padded_tokens
        view.q_start[: rows + 1].copy_(batch.q_start)
        view.q_start[rows + 1 :].fill_(tokens)
        view.q_row[:tokens].copy_(batch.q_row)
        view.q_row[tokens:].fill_(view.padded_size - 1)
        if view.logits_at is not None:
            assert batch.logits_at is not None
            view.logits_at[:rows].copy_(batch.logits_at)
            view.logits_at[rows:].fill_(0)
        if view.tree_mask is not None:
            # Else the tokens would see what an earlier step's did.
            assert batch.tree_mask is not None
            view.tree_mask[:tokens].copy_(batch.tree_mask)
            view.tree_mask[tokens:].fill_(0)

    def _view(self, bucket: Bucket) -> ForwardBatch:
        import torch

        rows, tokens = bucket.rows, bucket.tokens
        each = bucket.mode is ForwardMode.DECODE
        tree_mask = None
        if self._tree and bucket.mode is ForwardMode.TARGET_VERIFY:
            width = tokens // rows
            name, shape = f"inputs.tree_mask.{width}", (self._most_tokens, width)
            tree_mask = self._static(name, shape, torch.bool)[:tokens]
        return ForwardBatch(
            mode=bucket.mode,
            size=0,
            padded_size=rows,
            padded_tokens=tokens,
            tokens=self._tokens[:tokens],
            rows=self._rows[:rows],
            seq_lens=self._seq_lens[:rows],
            q_start=self._each_start[: rows + 1] if each else self._q_start[: rows + 1],
            q_row=self._each_row[:tokens] if each else self._q_row[:tokens],
            positions=self._positions[:tokens],
            out_slots=self._out_slots[:tokens],
            max_seq_len=bucket.max_seq_len,
            max_q_len=bucket.max_q_len,
            logits_at=self._logits_at[:rows] if bucket.mode.is_prefill else None,
            tree_mask=tree_mask,
            bucket=bucket,
        )


def blank(bucket: Bucket, device: torch.device) -> ForwardBatch:
    """A batch of `bucket`'s shapes in which every row is a padding row, with equal lengths.

    What a capture sees: it writes to slot 0 only, which holds no request's data.
    """
    import torch

    rows, tokens = bucket.rows, bucket.tokens
    length, more = divmod(tokens, rows)
    lens = [length + (row < more) for row in range(rows)]
    counts = torch.tensor(lens)
    q_start = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    index = torch.arange(tokens)
    q_row = torch.repeat_interleave(counts, output_size=tokens)
    nothing = torch.zeros_like(index)
    verify = bucket.mode is ForwardMode.TARGET_VERIFY

    def there(tensor: torch.Tensor) -> torch.Tensor:
        # Copied, never computed: whoever asks has no stream of the device, and such a copy has
        # ended when the call returns.
        return tensor.to(device)

    return ForwardBatch(
        mode=bucket.mode,
        size=rows,
        padded_size=rows,
        padded_tokens=tokens,
        tokens=there(nothing),
        rows=there(nothing[:rows]),
        seq_lens=there(counts.int()),
        q_start=there(q_start.int()),
        q_row=there(q_row),
        positions=there(index - q_start[q_row]),
        out_slots=there(nothing),
        max_seq_len=bucket.max_seq_len,
        max_q_len=bucket.max_q_len,
        extend_lens=tuple(lens) if bucket.mode.is_prefill else (),
        logits_at=there(q_start[1:] - 1) if bucket.mode.is_prefill else None,
        tree_mask=there(torch.ones(tokens, length, dtype=torch.bool)) if verify else None,
    )
