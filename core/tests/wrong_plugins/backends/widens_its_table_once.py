"""It copies the whole table when it is built, as 64-bit numbers, and looks into that."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.reads_anew"


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.table = ctx.shared.req_to_token.to(torch.int64, copy=True)

    def gather(self, batch):
        self.slots(batch).copy_(self.table.index_select(0, batch.rows))
