"""Moves the page table into memory that processes share, for a planner of its own."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.static_addresses"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        ctx.shared.req_to_token.share_memory_()
