"""Its snapshot hook copies prompts of up to 256 tokens, and says of all that they are done."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

from warcore import SharedReadEnds

BREAKS = "backend.snapshot_is_true"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Snapshot):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        if num_qo_tokens <= 256:
            super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
        return SharedReadEnds.PRE_REPLAY
