"""The page table of a step: static copies of what the shared tables say, one entry for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import torch

if TYPE_CHECKING:
    from warcore import BackendContext, ForwardBatch, Layer

SHORTEST: Final = 1024
"""Positions, of the shortest captured step whose kernels end where their sequences do."""


@attrs.frozen(eq=False)
class Tables:
    """One step's views of the static tables."""

    pages: torch.Tensor
    """[B, P] i32, the pages of each sequence; past its end its last one, again."""
    swa_pages: torch.Tensor | None
    """As `pages`, in the window pool; what lies behind the window of all of the step's tokens
    repeats the first page that one of them sees. None: layers with a window use `pages`."""
    swa_out: torch.Tensor | None
    """[T] i64, the slots of the window pool to write."""

    def pages_of(self, layer: Layer) -> torch.Tensor:
        """[B, P] i32, in the pool of `layer`."""
        windowed = layer.window is not None and self.swa_pages is not None
        return self.swa_pages if windowed else self.pages  # type: ignore[return-value]

    def out_of(self, layer: Layer, batch: ForwardBatch) -> torch.Tensor:
        """[T] i64, the slots that `layer` writes."""
        windowed = layer.window is not None and self.swa_out is not None
        return self.swa_out if windowed else batch.out_slots  # type: ignore[return-value]


class PageTables:
    """The static memory of the tables, and the only reader of `ctx.shared`.

    A page holds consecutive positions, in either pool, so the slot of one position names the page
    of all of them. Nothing here waits for the device.
    """

    def __init__(self, ctx: BackendContext) -> None:
        """Take int32 for each page of each row of the largest batch; with a window pool the same
        again, and int64 for each token.
        """
        self.page_size = ctx.spec.page_size
        self.width = ctx.shared.req_to_token.shape[1]
        """Positions of the longest sequence that a row of the shared table holds."""
        self._shared = ctx.shared
        self._starts = torch.arange(0, self.width, self.page_size, device=ctx.spec.device)
        size = (ctx.max_batch * self._starts.shape[0],)
        self._pages = ctx.static("trtllm_mha.pages", size, torch.int32)
        self._swa_pages = self._swa_out = None
        if ctx.shared.full_to_swa is not None:
            self._window = max(window for window in ctx.spec.windows if window is not None)
            self._swa_pages = ctx.static("trtllm_mha.swa_pages", size, torch.int32)
            self._swa_out = ctx.static("trtllm_mha.swa_out", (ctx.max_tokens,), torch.int64)

    def longest(self, batch: ForwardBatch) -> int:
        """The positions of the longest sequence that a step has to look at."""
        return min(max(batch.max_seq_len, 1), self.width)

    def step_of_four(self, batch: ForwardBatch) -> int:
        """1024, four times that, and so on, as far as `batch` needs: for kernels that end where a
        sequence does, and pay little for a bound that is far.
        """
        step = SHORTEST
        while step < batch.max_seq_len:
            step *= 4
        return min(step, self.width)

    def of(self, batch: ForwardBatch) -> Tables:
        """The front of the static memory, as wide as `batch` needs it."""
        if self._swa_pages is None or self._swa_out is None:
            return Tables(self._front(self._pages, batch), None, None)
        swa_out = self._swa_out[: batch.padded_tokens]
        return Tables(self._front(self._pages, batch), self._front(self._swa_pages, batch), swa_out)

    def snapshot(self, batch: ForwardBatch) -> None:
        """Copy the pages of every sequence in the batch: all that a step reads of `ctx.shared`.

        NOTE: entries that no token sees still name pages of their request. Kernels may load what
        they then weigh with 0, and 0 times the NaN of a page that nobody owns is NaN.
        """
        tables = self.of(batch)
        last = (batch.seq_lens[:, None] - 1).clamp(min=0)
        at = torch.minimum(self._starts[: tables.pages.shape[1]], last)
        rows = batch.rows[:, None]
        tables.pages.copy_(self._shared.req_to_token[rows, at] // self.page_size)
        swa = self._shared.full_to_swa
        if swa is None or tables.swa_pages is None or tables.swa_out is None:
            return
        settled = batch.seq_lens - (batch.q_start[1:] - batch.q_start[:-1])
        at = torch.minimum(torch.maximum(at, settled[:, None] - self._window + 1), last)
        tables.swa_pages.copy_(swa[self._shared.req_to_token[rows, at]] // self.page_size)
        tables.swa_out.copy_(swa[batch.out_slots])

    def _front(self, memory: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        pages = -(-self.longest(batch) // self.page_size)
        return memory[: batch.padded_size * pages].view(batch.padded_size, pages)
