"""It takes the rows of the table in their order, whichever are in the batch."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.rows"


class Plugin(Right):
    def gather(self, batch):
        table = self.ctx.shared.req_to_token[1 : 1 + batch.padded_size]
        self.slots(batch)[: table.shape[0]].copy_(table)
