"""Its snapshot hook takes the bucket for the batch."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

BREAKS = "backend.snapshot_answers"


class Plugin(Snapshot):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        assert num_qo_tokens == forward_batch.positions.shape[0]
        return super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
