"""What it says of a batch depends on the batches before."""

from __future__ import annotations

from wrong_plugins.models.right import Family, Right

BREAKS = "model.forward_is_pure"


class Wrong(Right):
    seen = False

    def embed(self, batch):
        if batch.size > 1 and batch.max_seq_len == 8:
            self.seen += 1
        return super().embed(batch) + 0.1 * (self.seen > 1)


class Plugin(Family):
    model = Wrong
