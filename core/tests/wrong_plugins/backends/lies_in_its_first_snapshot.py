"""Its snapshot hook leaves the first prompt to its layers, and says that all reads are done."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

from warcore import SharedReadEnds

BREAKS = "backend.snapshot_is_true"
DETECTORS = ("guard", "attribution")


class Plugin(Snapshot):
    called = False

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        if self.called:
            super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
        self.called = True
        return SharedReadEnds.PRE_REPLAY
