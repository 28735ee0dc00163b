"""Its snapshot hook leaves bfloat16 to a kernel that gathers, and says that all reads are done."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Snapshot

from warcore import SharedReadEnds

BREAKS = "backend.snapshot_is_true"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Snapshot):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        if self.ctx.spec.dtype is not torch.bfloat16:
            super().prepare_prefill_shared_read_snapshot(forward_batch, num_qo_tokens)
        return SharedReadEnds.PRE_REPLAY
