"""The shape of its in-graph metadata depends on data."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.captures"


class Plugin(Right):
    def init_forward_metadata_in_graph(self, batch):
        self.long = batch.seq_lens.nonzero()  # a shape that depends on data
