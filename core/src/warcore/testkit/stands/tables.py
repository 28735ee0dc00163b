"""Tables: what a stand shares with its backend, written as a scheduler would write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from warcore.shared import SharedBuffers
from warcore.testkit.stands.inorder import AroundMarker
from warcore.testkit.stands.memory import scattered_map, scattered_slots

if TYPE_CHECKING:
    from warcore.batch import ForwardBatch
    from warcore.device import Device, Stream
    from warcore.shared import SharedTables
    from warcore.testkit.stands.cell import Shape

MOVED: Final = 3
"""By how many pages of its row, and over its end, each page moves: no multiple of a row."""


class Tables:
    """The shared tables of a stand, on whose device they are written.

    All positions of all rows have slots, in pages that lie in no order. mapped: whether layers with
    a window have a pool of their own, and a map to it.
    """

    def __init__(self, device: Device, schedule: Stream, shape: Shape, *, mapped: bool) -> None:
        self._device = device
        self._shape = shape
        rows = shape.rows
        pages = rows * -(-shape.context // shape.page_size)
        self._shared = SharedBuffers(
            device,
            schedule,
            rows=rows,
            context=shape.context,
            page_size=shape.page_size,
            mapped=pages if mapped else None,
        )
        width = self.table.shape[1]
        self.slots = scattered_slots(shape.page_size, rows, width)
        """[rows + 1, context] i64: the slot of each position, as the table has it."""
        self.map = scattered_map(shape.page_size, rows, width) if mapped else None
        """[slots] i64: where layers with a window keep what others keep in a slot; None: there."""
        self._at = {name: table.data_ptr() for name, table in self.named.items()}
        self.around: AroundMarker | None = None
        """What lies around the markers of captures, see `surround`."""

    @property
    def given(self) -> SharedTables:
        """What a backend is given: the readers' views."""
        return self._shared.tables

    @property
    def table(self) -> torch.Tensor:
        """The readers' view of the table."""
        return self.given.req_to_token

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """The readers' views of all that is shared, by name."""
        found, swa = {"req_to_token": self.table}, self.given.full_to_swa
        return found if swa is None else found | {"full_to_swa": swa}

    @property
    def moved(self) -> list[str]:
        """What is no longer where it was when it was made: its tensor was given other memory."""
        return [name for name, table in self.named.items() if table.data_ptr() != self._at[name]]

    def surround(self, forward: Stream) -> None:
        """From here on captures overwrite the table at their markers, as `AroundMarker` says."""
        self.around = AroundMarker(self._device, self._shared.writer)
        forward.submit(self.around.warm_up).result()

    def write(self, slots: torch.Tensor) -> None:
        """Overwrite the table, [rows + 1, context]."""
        with torch.inference_mode():
            self._shared.writer.copy_(slots)
            if self.around is not None:
                # So that no marker that is passed later puts back what was there before.
                self.around.choose(slots)

    def write_map(self, slots: torch.Tensor) -> None:
        """Overwrite the map, [slots]."""
        assert self._shared.map_writer is not None
        with torch.inference_mode():
            self._shared.map_writer.copy_(slots)

    def move(self) -> None:
        """Every row is given the pages that another had, and every page another of the window pool.

        What lay in the pages stays where it was: see `Stand.move_pages`.
        """
        self.slots[1:] = _rolled(self.slots[1:], self._shape.page_size, by=MOVED)
        self.write(self.slots)
        if self.map is not None:
            size = self._shape.page_size
            self.map[size:] = _rolled(self.map[size:], size, by=1)

    def slots_in(self, layer: int) -> torch.Tensor:
        """[rows + 1, context] i64: the slot of each position in the pool of a layer."""
        if self.map is None or self._shape.windows[layer] is None:
            return self.slots
        return self.map[self.slots]

    def map_for(self, batch: ForwardBatch) -> torch.Tensor:
        """The map as a scheduler has it in this step: behind the windows it leads to page 0."""
        assert self.map is not None
        longest = max(window for window in self._shape.windows if window is not None)
        made, size = self.map.clone().view(-1, self._shape.page_size), self._shape.page_size
        counts = batch.q_start[1:] - batch.q_start[:-1]
        firsts = (batch.seq_lens - counts).tolist()
        for row, first in zip(batch.rows.tolist(), firsts, strict=True):
            behind = max(first - longest + 1, 0) // size * size
            made[self.slots[row, :behind:size] // size] = torch.arange(size)
        return made.flatten()


def _rolled(slots: torch.Tensor, page_size: int, *, by: int) -> torch.Tensor:
    """The same pages, each `by` places further."""
    return slots.reshape(-1, page_size).roll(by, 0).view_as(slots)
