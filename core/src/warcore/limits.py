"""Limits: how much of an engine may run at once."""

from __future__ import annotations

import attrs

from warcore.contract import ForwardMode


@attrs.frozen
class Limits:
    """How much may run at once."""

    max_running: int
    max_context: int
    page_size: int
    pages: int
    prefill_chunk: int
    """Prompt tokens per step, over all requests."""
    mixed: bool = False
    """Whether a step may hold prefill chunks and decodes; such a step has a coarse fence."""
    drafted: int = 0
    """Tokens that are drafted for each request and step."""
    window: int | None = None
    """The longest window of the layers that have a pool of their own; None: there is one pool."""
    swa_pages: int = 0
    """Pages of the window pool."""

    @property
    def behind(self) -> int:
        """Positions behind the end of a sequence that drafts reach; each has a slot of its own."""
        return self.drafted + 1 if self.drafted else 0

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that the pool holds, with what is drafted behind it."""
        return self.pages * self.page_size - self.behind

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that can run: context and pool hold it."""
        return min(self.max_context, self.capacity)

    @property
    def decode_mode(self) -> ForwardMode:
        """Of the steps in which every request goes on by itself."""
        return ForwardMode.TARGET_VERIFY if self.drafted else ForwardMode.DECODE

    @property
    def max_tokens(self) -> int:
        """Tokens of the largest step."""
        verify = self.max_running * (self.drafted + 1)
        return max(self.prefill_chunk + self.max_running, verify)
