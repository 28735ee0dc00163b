"""Its snapshot hook copies the rows, and its layers ask the map where windows lie."""

from __future__ import annotations

from wrong_plugins.backends.right import Pooled, Snapshot, Windowed

from warcore import ForwardMode, SharedReadEnds

BREAKS = "backend.snapshot_is_true"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Snapshot, Pooled):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        Windowed.gather(self, forward_batch)
        self.ready = True
        return SharedReadEnds.PRE_REPLAY

    def forward(self, q, k, v, layer, batch):
        if batch.mode is ForwardMode.EXTEND:
            self.translate(batch)  # too late: the map is shared as well
        return super().forward(q, k, v, layer, batch)
