"""Rows and pages: who owns what, decided on the host. Nothing here touches device memory.

Row 0 and page 0 are for padding. They lie beyond the configured capacity, so a padded step can
never reach a request's data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore.request import Request


class Pool:
    """Numbers 1..capacity, each owned or free. The one freed last is handed out first.

    Reusing the freshest number is on purpose: it is the schedule in which a missing fence shows.
    So is their order: given back in the order in which they are handed out again, the next owner
    of a row would get the pages that the row's part of the table names already, and a read that
    comes too late would find what it expects.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a pool of {capacity} holds nothing")
        self.capacity = capacity
        self._free = list(range(capacity, 0, -1))
        self._owned = bytearray(capacity + 1)

    def __len__(self) -> int:
        """How many are free."""
        return len(self._free)

    def allocate(self, count: int = 1) -> list[int]:
        """Take `count` numbers; the caller has asked `len` before."""
        assert count <= len(self._free), "allocate without asking how many are free"
        split = len(self._free) - count
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        for number in taken:
            self._owned[number] = 1
        return taken

    def free(self, numbers: list[int]) -> None:
        """Give numbers back; giving one back twice would hand it to two owners."""
        for number in numbers:
            assert self._owned[number], f"{number} was given back twice"
            self._owned[number] = 0
        self._free.extend(numbers)


def pages_for(tokens: int, page_size: int) -> int:
    """How many pages hold `tokens`."""
    return -(-tokens // page_size)


class Pages:
    """The KV pages of running requests, and what the table has yet to learn of them."""

    def __init__(self, capacity: int, page_size: int, place: Callable[[int, int], int]) -> None:
        """`place(row, index)`: where the table keeps page number `index` of a row."""
        self.capacity = capacity
        self.page_size = page_size
        self._place = place
        self._pool = Pool(capacity)
        self._owed: dict[Request, int] = {}
        """The first page of each request that the table does not name yet."""

    def __len__(self) -> int:
        """How many are free."""
        return len(self._pool)

    def lacks(self, request: Request, tokens: int) -> int:
        """How many pages `request` lacks to hold `tokens`."""
        return max(pages_for(tokens, self.page_size) - len(request.pages), 0)

    def grow(self, request: Request, count: int) -> None:
        """Give `request` so many pages; the caller knows that they are free."""
        self._owed.setdefault(request, len(request.pages))
        request.pages += self._pool.allocate(count)

    def release(self, request: Request) -> None:
        """Take all pages of `request` back; the table need not learn of them any more."""
        self._owed.pop(request, None)
        self._pool.free(request.pages)
        request.pages = []

    def owed(self) -> tuple[list[int], list[int]]:
        """(places in the table, the pages that belong there) since the last call."""
        places: list[int] = []
        pages: list[int] = []
        for request, first in self._owed.items():
            places += [self._place(request.row, i) for i in range(first, len(request.pages))]
            pages += request.pages[first:]
        self._owed.clear()
        return places, pages
