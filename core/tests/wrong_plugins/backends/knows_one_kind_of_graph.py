"""It looks for a table that it has for one kind of graph only."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import GraphKind

BREAKS = "backend.builds"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.name = {GraphKind.NONE: "none", GraphKind.UNBROKEN: "unbroken"}[ctx.graph]
