"""Its snapshot stays for the prefills after it."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

from warcore import ForwardMode, SharedReadEnds

BREAKS = "backend.snapshot_is_of_its_batch"


class Plugin(Snapshot):
    taken = False

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        self.ready = self.taken and batch.mode is ForwardMode.EXTEND

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        if not self.taken:
            super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
        self.taken = True
        return SharedReadEnds.PRE_REPLAY
