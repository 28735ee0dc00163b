"""The chunk cache: what a prefill of many tokens looks up once, and attends to in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import torch

from warcore_backend_deepseek_v4.attention import attend, causal, load, score_mask
from warcore_backend_deepseek_v4.lookups import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from warcore import ForwardBatch, Layer
    from warcore_backend_deepseek_v4.attention import KeysAndValues
    from warcore_backend_deepseek_v4.source import Source

BLOCK: Final = 64
"""Tokens of a block, at most, in layers with a window: it loads a window and itself."""
LARGE: Final = 256
"""The same in the other layers, which load a whole sequence once and see less of it than that."""
STAGED: Final = "deepseek_v4.cut"
"""Static memory for `Cut.words`."""


@attrs.frozen
class Cut:
    """The new tokens of a chunk in blocks, by the blocks' size, a power of two.

    A request's blocks are as large as its tokens need, so a short one among long ones pads little.
    """

    blocks: dict[int, list[tuple[int, int]]]
    """By size: (request, the first of its tokens) of each block."""
    places: list[int]
    """Of each request: where its first token is among the rows of all blocks."""

    @classmethod
    def of(cls, lens: Sequence[int]) -> Cut:
        """lens: new tokens of each request."""
        blocks: dict[int, list[tuple[int, int]]] = {}
        for request, count in enumerate(lens):
            size = min(1 << (max(count, 1) - 1).bit_length(), BLOCK)
            starts = range(0, count, size)
            blocks.setdefault(size, []).extend((request, start) for start in starts)
        places, row = [0] * len(lens), 0
        for size, cut in blocks.items():
            for request, start in cut:
                if not start:
                    places[request] = row
                row += size
        return cls(blocks, places)

    def words(self) -> list[int]:
        """All of it as one list, for one copy: places, requests, starts."""
        cut = [block for blocks in self.blocks.values() for block in blocks]
        return [*self.places, *(request for request, _ in cut), *(start for _, start in cut)]


@attrs.frozen(eq=False)
class Blocks:
    """Blocks of one size N, and what each of them looks at in layers with a window."""

    tokens: torch.Tensor
    """[G, N] i64; behind the end of a request its last one, again."""
    positions: torch.Tensor
    """[G, N] i64, of those tokens."""
    at: torch.Tensor
    """[G, W] i64: the positions from the beginning of the first token's window on."""
    slots: torch.Tensor
    """[G, W] i32: where they are; behind a sequence's end its last one, again."""


class ChunkCache(Lookup):
    """Rows of the table and translated window slots, read once for all layers of a chunk.

    Built outside of graphs, from what the host knows of the live batch. Every shared read of the
    step is in `__init__`: it is all there, or there is none.
    """

    def __init__(
        self,
        batch: ForwardBatch,
        tokens: int,
        length: int,
        source: Source,
        stage: Callable[[str, Sequence[int]], torch.Tensor],
    ) -> None:
        """tokens: T of the step, which may be more than the batch has. stage: as `ctx.stage`."""
        super().__init__(batch, length, source)
        self._lens = batch.extend_lens
        self._live = sum(self._lens)
        rows = batch.rows[: len(self._lens)]
        last = (batch.seq_lens[: len(self._lens), None] - 1).clamp(min=0)
        self._whole: torch.Tensor | None = None
        """[requests, L] i32: the slot of each position; behind a sequence's end its last one."""
        self._blocks: list[Blocks] = []
        if source.has_full:
            self._whole = source.slots(rows, torch.minimum(source.columns[:length], last))
        if source.window is not None:
            cut = Cut.of(self._lens)
            words = stage(STAGED, cut.words())
            self._places = self._placed(words)
            self._blocks += self._looked_up(cut, words, rows, last)
        if source.mapped:
            # Padding writes to the padding page, whichever pool it is of.
            self.out = torch.zeros(tokens, dtype=torch.int64, device=rows.device)
            self.out[: self._live] = source.translated(batch.out_slots[: self._live])

    def _placed(self, words: torch.Tensor) -> torch.Tensor:
        """[live tokens] i64: which row of all blocks each token is."""
        batch, live = self.batch, self._live
        request = batch.q_row[:live]
        nth = torch.arange(live, device=request.device) - batch.q_start[request]
        return words[request] + nth

    def _looked_up(
        self, cut: Cut, words: torch.Tensor, rows: torch.Tensor, last: torch.Tensor
    ) -> Iterator[Blocks]:
        batch, source = self.batch, self.source
        assert source.window is not None
        requests, starts = words[len(self._lens) :].view(2, -1)
        begin = 0
        for size, blocks in cut.blocks.items():
            part = slice(begin, begin + len(blocks))
            begin = part.stop
            request = requests[part]
            first = batch.q_start[request][:, None]
            # Not of `source.columns`, which a short context has fewer of than a block has tokens.
            nth = starts[part, None] + torch.arange(size, device=request.device)
            end = batch.q_start[request + 1][:, None] - 1
            tokens = torch.minimum(first + nth, end)
            positions = batch.positions[tokens]
            before = (positions[:, :1] - source.window + 1).clamp(min=0)
            at = before + source.columns[: min(source.window - 1 + size, self.length)]
            owned = torch.minimum(at, last[request])
            yield Blocks(tokens, positions, at, source.window_slots(rows[request], owned))

    # ---- attention -----------------------------------------------------------------------------

    def attend(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """Block by block, each over no more than what it sees. Padding gives 0."""
        over = self._over_all if layer.window is None else self._over_windows
        found = over(q, cache, layer)
        if self._live == q.shape[0]:
            return found
        out = torch.zeros_like(q)
        out[: self._live] = found
        return out

    def _over_windows(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """All blocks of one size in one call, each over a window and itself."""
        outs = []
        for blocks in self._blocks:
            mask = self.derive(self._mask_of_blocks, blocks, layer.window)
            out = attend(q[blocks.tokens], load(cache, blocks.slots), mask, layer)
            outs.append(out.flatten(0, 1))
        return torch.cat(outs)[self._places]

    def _mask_of_blocks(self, blocks: Blocks, window: int) -> torch.Tensor:
        """[G, 1, N, W]."""
        seen = causal(blocks.positions, blocks.at, window)
        return score_mask(seen, self.source.dtype)[:, None]

    def _over_all(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """Request by request; a block ends with what its last token can see."""
        assert self._whole is not None
        outs, first = [], 0
        for request, count in enumerate(self._lens):
            keys, values = load(cache, self._whole[request : request + 1])
            for start in range(0, count, LARGE):
                stop = min(start + LARGE, count)
                most = self.length - count + stop
                mask = self.derive(self._mask_of_part, first + start, first + stop, most)
                loaded = keys[:, :, :most], values[:, :, :most]
                outs.append(attend(q[None, first + start : first + stop], loaded, mask, layer)[0])
            first += count
        return torch.cat(outs)

    def _mask_of_part(self, start: int, stop: int, most: int) -> torch.Tensor:
        """[N, W]."""
        seen = causal(self.batch.positions[start:stop], self.source.columns[:most], None)
        return score_mask(seen, self.source.dtype)
