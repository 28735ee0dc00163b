"""Pages of the window pool: who holds which, and what the map has yet to learn.

A layer with a sliding window reads the newest tokens of a sequence only, so its keys and values
live in a smaller pool. A request holds pages of it for the positions that its next steps may read
or write, and gives back those behind its window while it runs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from warcore.pools import Pool, pages_for

if TYPE_CHECKING:
    from warcore.request import Request


def most_window_pages(
    window: int, page_size: int, *, requests: int, chunk: int, drafted: int
) -> int:
    """How many pages of the window pool a step can need at most, padding page apart.

    A request that decodes reads `window` tokens, the first one that is computed next among them,
    and writes up to `2 * drafted` beyond it: as many as are drafted by the step on its way and by
    the next one. One that prefills writes its part of `chunk` instead, and gives back what lies
    behind its window with the launch. Either span may begin and end within a page.
    """
    return requests * (pages_for(window + 2 * drafted, page_size) + 2) + pages_for(chunk, page_size)


@attrs.define(eq=False)
class _Span:
    first: int = 0
    """Its place among the request's pages; those before are given back."""
    pages: deque[int] = attrs.field(factory=deque)


class WindowPages:
    """The window pool's pages of running requests. Host bookkeeping only.

    The map names the pages of the full pool: page n of a request's span holds, for the layers with
    a window, the positions that `request.pages[span.first + n]` holds for the others.
    """

    def __init__(self, capacity: int, page_size: int, window: int) -> None:
        """window: the longest one of the model, in tokens, the present one included."""
        self.capacity = capacity
        self._page_size = page_size
        self._window = window
        self._pool = Pool(capacity)
        self._spans: dict[Request, _Span] = {}
        self._owed: dict[int, int] = {}
        """{page of the full pool: its page of this one} where the map is wrong."""

    def __len__(self) -> int:
        """How many are free."""
        return len(self._pool)

    def cover(self, request: Request, tokens: int) -> None:
        """Before a launch that computes no position from `tokens` on, and which may read the window
        of every later one. The full pool's pages of the request hold so many.
        """
        self.trim(request)
        span = self._spans.setdefault(request, _Span())
        start = span.first + len(span.pages)
        lacking = pages_for(tokens, self._page_size) - start
        if lacking > 0:
            fresh = self._pool.allocate(lacking)
            span.pages.extend(fresh)
            full = request.pages[start : start + lacking]
            self._owed.update(zip(full, fresh, strict=True))

    def trim(self, request: Request) -> None:
        """Take back the pages that lie wholly behind the window of whatever is computed next.

        Sound although a launch still reads them: its reads come before any later launch's writes,
        and the map says so only behind the barrier of that launch.
        """
        span = self._spans.get(request)
        if span is None:
            return
        first = max(request.next_position - self._window + 1, 0) // self._page_size
        freed = []
        while span.first < first and span.pages:
            freed.append(span.pages.popleft())
            self._owed[request.pages[span.first]] = 0
            span.first += 1
        self._pool.free(freed)

    def release(self, request: Request) -> None:
        """Take all pages of `request` back, before the full pool does.

        The map may go on naming them: whoever gets a page of the full pool has the map say where it
        leads before anything is written there.
        """
        span = self._spans.pop(request, None)
        if span is not None:
            self._pool.free(list(span.pages))
        for page in request.pages:
            self._owed.pop(page, None)

    def owed(self) -> tuple[list[int], list[int]]:
        """(pages of the full pool, the pages of this one that they lead to) since the last call.

        Page 0 for what lies behind a window.
        """
        found = list(self._owed), list(self._owed.values())
        self._owed.clear()
        return found
