"""Lookups: where the keys and values of one step lie, and attention over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import torch

    from warcore import ForwardBatch, Layer
    from warcore_backend_deepseek_v4.attention import KeysAndValues
    from warcore_backend_deepseek_v4.source import Source

    Memory = Callable[..., torch.Tensor]


class Lookup(ABC):
    """What the layers of one step share. Masks and the like are derived by the first that asks."""

    def __init__(self, batch: ForwardBatch, length: int, source: Source) -> None:
        """length: so many positions of a sequence the step may see, at most."""
        self.batch = batch
        self.length = length
        self.source = source
        self.out: torch.Tensor | None = None
        """[T] i64, where layers with a window write; None: where the others do."""
        self._derived: dict[tuple[Hashable, ...], torch.Tensor] = {}

    @abstractmethod
    def attend(self, q: torch.Tensor, cache: KeysAndValues, layer: Layer) -> torch.Tensor:
        """q [T, q_heads, D] over what its tokens see; shaped like q. Reads nothing shared."""

    def derive(self, make: Callable[..., torch.Tensor], *of: Hashable) -> torch.Tensor:
        """make(*of), from what is private to the step; made once."""
        # By name: the method itself would hold this lookup, and all its memory, until a collection.
        key = make.__name__, *of
        if key not in self._derived:
            self._derived[key] = make(*of)
        return self._derived[key]

    def forget(self) -> None:
        """Let everything be derived anew.

        NOTE: a device warms up before it captures, with the same lookup. What is left from there
        would be no part of the graph, and every replay would see that of the capture.
        """
        self._derived.clear()


class Table(Lookup):
    """A lookup in memory that is there before; `read` fills it, and in a graph each replay does."""

    def __init__(
        self, batch: ForwardBatch, length: int, source: Source, memory: Memory, *, rows: int
    ) -> None:
        """rows: requests to look up; the batch's others are padding."""
        super().__init__(batch, length, source)
        self.rows = rows
        self.full = memory("full", rows, length) if source.has_full else None
        """[rows, L] i32: the slot of each position; behind a sequence's end its last one, again."""
        self.windowed = memory("window", *self.spans()) if source.window else None
        """[G, W] i32: what each group looks at, in the pool of the layers with a window."""
        if source.mapped:
            self.out = memory("out", batch.padded_tokens)

    @abstractmethod
    def spans(self) -> tuple[int, int]:
        """G groups, and the W positions that each looks at in layers with a window."""

    @abstractmethod
    def looked_at(self) -> torch.Tensor:
        """[G, W] i64: those positions, one after the other; the request may not own all of them."""

    @abstractmethod
    def owned(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[G] and [G, W]: the groups' rows of the table, and what they load: for each position that
        they look at itself, or one that the request owns.
        """

    def read(self) -> None:
        """Every shared read of the step.

        NOTE: a masked score has weight 0, and 0 times the NaN of a slot that nobody owns is NaN;
        so what a request does not own is never loaded, seen or not.
        """
        batch, source = self.batch, self.source
        if self.full is not None:
            at = source.columns[: self.length].minimum(self.last())
            self.full.copy_(source.slots(batch.rows[: self.rows], at))
        if self.windowed is not None:
            self.windowed.copy_(source.window_slots(*self.owned()))
        if self.out is not None:
            self.out.copy_(source.translated(batch.out_slots))

    def slots(self, layer: Layer) -> torch.Tensor:
        """What `read` has found for the groups of `layer`."""
        found = self.full if layer.window is None else self.windowed
        assert found is not None, "the windows of all layers are in the spec"
        return found

    # ---- of each request, [rows, 1] ------------------------------------------------------------

    def settled(self) -> torch.Tensor:
        """Tokens before this step."""
        starts = self.batch.q_start[: self.rows + 1]
        return (self.batch.seq_lens[: self.rows] - (starts[1:] - starts[:-1]))[:, None]

    def last(self) -> torch.Tensor:
        """The last position; 0 for padding that has none."""
        return (self.batch.seq_lens[: self.rows, None] - 1).clamp(min=0)
