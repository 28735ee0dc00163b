"""Asks how far its requests have come before it drafts."""

from __future__ import annotations

from wrong_plugins.spec_algos.right import Right

BREAKS = "spec_algo.no_host_sync"


class Plugin(Right):
    def draft(self, batch):
        assert batch.seq_lens.max().item() > 0
        return super().draft(batch)
