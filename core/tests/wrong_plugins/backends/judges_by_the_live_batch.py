"""Its hook judges a prefill by its own tokens, and its layers by those of the bucket."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

from warcore import ForwardMode, SharedReadEnds

BREAKS = "backend.snapshot_is_true"
DETECTORS = ("guard", "attribution", "poison")
MOST = 6
"""Tokens of a prefill whose rows are copied with the metadata; of others, by the hook."""


class Plugin(Snapshot):
    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        if batch.mode is ForwardMode.EXTEND and batch.padded_tokens <= MOST:
            self.gather(batch)
            self.ready = True

    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        if forward_batch.padded_tokens > MOST:  # a replay has num_qo_tokens
            super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
        return SharedReadEnds.PRE_REPLAY
