"""Its snapshot hook answers with a bool."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

BREAKS = "backend.snapshot_answers"


class Plugin(Snapshot):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
        return True
