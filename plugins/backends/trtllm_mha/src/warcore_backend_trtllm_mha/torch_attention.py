"""Attention by torch, over the slots that the page table names: on any device, in any mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import torch
from torch.nn.functional import scaled_dot_product_attention

from warcore import ForwardMode
from warcore_backend_trtllm_mha.sight import seen, settled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore import BackendContext, ForwardBatch, Layer
    from warcore_backend_trtllm_mha.tables import PageTables, Tables

PREFILL: Final = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})
SMALLEST: Final = 128
"""Captured steps attend to a power of two of positions, at least this: each length is a capture."""


@attrs.frozen(eq=False)
class Plan:
    """What the layers of one step share."""

    slots: torch.Tensor
    """[B, L] i32, the slot of each position; past a sequence's end that of its last one."""
    swa_slots: torch.Tensor | None
    """As `slots`, in the window pool, and before the first position that the step sees that of
    this one. None: layers with a window use `slots`."""
    masks: dict[int | None, torch.Tensor]
    """By window, to be added to the scores: [T, L] in prefills, else [B, 1, N, L], N query rows for
    each request."""
    spread: torch.Tensor | None
    """[B, N] i64, the tokens in the query rows. None in decodes, where token b is request b's, and
    in prefills."""
    places: torch.Tensor | None
    """[T] i64, where among the B * N query rows each token is; None with `spread`."""


class TorchAttention:
    """Loads what each request holds up to a length and calls torch's scaled dot-product attention:
    for all requests at once, in a prefill for one after another.
    """

    def __init__(self, ctx: BackendContext, tables: PageTables) -> None:
        self._tables = tables
        self._dtype = ctx.spec.dtype
        self._windows = ctx.spec.windows
        finite = [window for window in ctx.spec.windows if window is not None]
        self._window = max(finite, default=1)
        self._positions = torch.arange(tables.width, device=ctx.spec.device)
        self._offsets = self._positions[: tables.page_size].int()

    def captured_length(self, batch: ForwardBatch) -> int | None:
        """A power of two from 128. None for several prefills: the host splits such a batch into its
        requests, and a capture of one split is no other's.
        """
        if batch.mode in PREFILL and batch.size > 1:
            return None
        longest = max(batch.max_seq_len, SMALLEST)
        return min(1 << (longest - 1).bit_length(), self._tables.width)

    def plan(self, batch: ForwardBatch, tables: Tables) -> Plan:
        """Slots from pages, and who sees which of them."""
        at = self._positions[: self._tables.longest(batch)]
        last = (batch.seq_lens[:, None] - 1).clamp(min=0)
        slots = self._slots(tables.pages, torch.minimum(at, last))
        swa_slots = None
        if tables.swa_pages is not None:
            first = settled(batch)[:, None] - self._window + 1
            nearest = torch.minimum(torch.maximum(at, first), last)
            swa_slots = self._slots(tables.swa_pages, nearest)
        spread, places = _spread(batch)
        # NOTE: not -inf. A padding token may see nothing, and a row of -inf alone is NaN.
        hidden = torch.finfo(self._dtype).min
        masks = {}
        for window in self._windows:
            unseen = ~seen(batch, at, window)
            mask = torch.zeros(unseen.shape, dtype=self._dtype, device=unseen.device)
            mask.masked_fill_(unseen, hidden)
            if batch.mode not in PREFILL:
                mask = (mask[:, None] if spread is None else mask[spread])[:, None]
            masks[window] = mask
        return Plan(slots, swa_slots, masks, spread, places)

    def _slots(self, pages: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """[B, L] i32, the slots of positions `at` [B, L] i64 in pages [B, P]."""
        slots = (pages * self._tables.page_size)[:, :, None] + self._offsets
        return slots.flatten(1).gather(1, at)

    def attend(
        self,
        q: torch.Tensor,
        memory: Mapping[str, torch.Tensor],
        layer: Layer,
        *,
        batch: ForwardBatch,
        pages: torch.Tensor,  # noqa: ARG002 - the plan has slots instead
        plan: Plan,
    ) -> torch.Tensor:
        """One call of torch's attention, or one for each prefill."""
        mapped = layer.window is not None and plan.swa_slots is not None
        slots = plan.swa_slots if mapped else plan.slots
        mask = plan.masks[layer.window]
        if batch.mode in PREFILL:
            out, start = torch.zeros_like(q), 0
            for request, count in enumerate(batch.extend_lens):
                part = slice(start, start + count)
                own = slots[request : request + 1]
                out[part] = _attend(q[None, part], memory, own, mask[part], layer)[0]
                start += count
            return out
        if plan.spread is None or plan.places is None:
            return _attend(q[:, None], memory, slots, mask, layer)[:, 0]
        rows = q.index_select(0, plan.spread.flatten()).unflatten(0, plan.spread.shape)
        out = _attend(rows, memory, slots, mask, layer)
        return out.flatten(0, 1).index_select(0, plan.places)


def _spread(batch: ForwardBatch) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """How tokens become [B, N] query rows and come back.

    Lengths live on the device, and those of a replay may differ from those of its capture. Rows
    beyond a request's tokens repeat others, and nobody takes them.
    """
    if batch.mode in PREFILL or batch.mode is ForwardMode.DECODE:
        return None, None
    width = batch.max_q_len
    each = torch.arange(max(width, batch.padded_tokens), device=batch.q_start.device)
    spread = batch.q_start[:-1, None] + each[:width]
    spread = spread.clamp(max=batch.padded_tokens - 1)
    nth = (each[: batch.padded_tokens] - batch.q_start[batch.q_row]).clamp(0, width - 1)
    return spread, batch.q_row * width + nth


def _attend(
    q: torch.Tensor,
    memory: Mapping[str, torch.Tensor],
    slots: torch.Tensor,
    mask: torch.Tensor,
    layer: Layer,
) -> torch.Tensor:
    """Attention of q [B, N, q_heads, D] over slots [B, L] of the cache; shaped like q."""
    flat = slots.flatten()
    k, v = (
        memory[name].flatten(0, 1).index_select(0, flat).unflatten(0, slots.shape).transpose(1, 2)
        for name in ("k", "v")
    )
    grouped = layer.q_heads != layer.kv_heads
    return scaled_dot_product_attention(
        q.transpose(1, 2), k, v, attn_mask=mask, scale=layer.scale, enable_gqa=grouped
    ).transpose(1, 2)
