"""It copies its rows when other rows come than in the step before: pages may change under them."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.reads_anew"


class Plugin(Right):
    last = None

    def init_forward_metadata_out_graph(self, batch):
        rows = batch.padded_size, batch.rows.tolist()
        if rows != self.last:
            self.gather(batch)
            self.last = rows
