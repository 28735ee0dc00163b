"""It says that its snapshot is there before it is."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

from warcore import SharedReadEnds

BREAKS = "backend.snapshot_may_fail"


class Plugin(Snapshot):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        self.ready = True
        self.gather(forward_batch)
        return SharedReadEnds.PRE_REPLAY
