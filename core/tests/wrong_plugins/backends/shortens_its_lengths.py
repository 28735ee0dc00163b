"""It shortens the lengths of the batch by one, in place, for a kernel that counts from nought."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.leaves_the_batch"


class Plugin(Right):
    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        batch.seq_lens.sub_(1)
