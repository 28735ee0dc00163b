"""Accepts every number of tokens, and refuses most of them when it is built."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.why_not"


class Plugin(Right):
    def __init__(self, ctx):
        if ctx.num_tokens > 4:
            raise ValueError("at most 4 tokens")
        super().__init__(ctx)
