"""Takes it that as many requests as once before are the same ones."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.in_an_engine"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.before = {}

    def load(self, batch, bucket):
        view = super().load(batch, bucket)
        if bucket in self.captured:
            which = bucket, batch.padded_size
            view.rows.copy_(self.before.setdefault(which, view.rows.clone()))
        return view
