"""SharedBuffers: every tensor that the schedule stream writes and a forward reads.

This file is where the hazard lives. A running forward reads these tables; the scheduler rewrites
them for the next step. The methods here are the only writers, they run on the schedule stream,
and the scheduler calls them only behind the fence of the launch before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import torch

    from warcore.device import Device, Pending, Stream


@attrs.frozen(eq=False)
class SharedTables:
    """The readers' view of the shared buffers: live memory."""

    req_to_token: torch.Tensor
    """[rows + 1, max_context or more] i32: the KV slot of each position of each row's sequence.

    Row 0 is the padding row and points at slot 0. A row is whole pages wide.
    """
    full_to_swa: torch.Tensor | None = None
    """[slots of the full pool] i32: where layers with a window keep what others keep in a slot.

    None without a window pool. The padding page leads to the padding page, and so does what lies
    behind the window of its request. Rewritten while a request runs, as its window moves on.
    """


class SharedBuffers:
    """Owns the tables. `context` is rounded up to whole pages."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        *,
        rows: int,
        context: int,
        page_size: int,
        mapped: int | None = None,
    ) -> None:
        """mapped: pages of the full pool, the padding page apart, for a map from it to the window
        pool; None: there is no such pool.
        """
        import torch

        self._stream = stream
        self.page_size = page_size
        self.pages_per_row = -(-context // page_size)
        with torch.inference_mode():
            writer, reader = device.shared_memory(
                "req_to_token", (rows + 1, self.pages_per_row * page_size), torch.int32
            )
            self.writer = writer
            """The table as the schedule stream writes it: the readers' may be a view of its own."""
            self._by_page = writer.view(-1, page_size)
            self._offsets = torch.arange(page_size, dtype=torch.int64, device=device.torch_device)
            self.map_writer: torch.Tensor | None = None
            """The map as the schedule stream writes it."""
            full_to_swa = None
            if mapped is not None:
                self.map_writer, full_to_swa = device.shared_memory(
                    "full_to_swa", ((mapped + 1) * page_size,), torch.int32
                )
                self.map_writer.view(-1, page_size).copy_(self._offsets)
            self.tables = SharedTables(reader, full_to_swa)

    def place(self, row: int, index: int) -> int:
        """Where the table keeps page number `index` of `row`: an argument of `write_pages`."""
        return row * self.pages_per_row + index

    def write_pages(self, places: torch.Tensor, pages: torch.Tensor) -> Pending:
        """Let `places` [n] i64 hold the slots of `pages` [n] i64. Runs on the schedule stream.

        The caller has put the barrier of the last launch on that stream before.
        """
        return self._stream.submit(self._write_pages, places, pages)

    def write_map(self, full: torch.Tensor, swa: torch.Tensor) -> Pending:
        """Let pages `full` [n] i64 of the full pool lead to pages `swa` [n] i64 of the window pool.

        Runs on the schedule stream, behind the barrier as `write_pages` does.
        """
        return self._stream.submit(self._write_map, full, swa)

    def _write_pages(self, places: torch.Tensor, pages: torch.Tensor) -> None:
        self._by_page.index_copy_(0, places, self._slots(pages))

    def _write_map(self, full: torch.Tensor, swa: torch.Tensor) -> None:
        assert self.map_writer is not None, "there is no window pool"
        by_page = self.map_writer.view(-1, self.page_size)
        by_page.index_copy_(0, full, self._slots(swa))

    def _slots(self, pages: torch.Tensor) -> torch.Tensor:
        """[n, page_size] i32."""
        return (pages.unsqueeze(1) * self.page_size + self._offsets).int()
