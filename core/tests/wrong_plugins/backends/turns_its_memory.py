"""It transposes its static buffer in place, there and back in turn."""

from __future__ import annotations

import torch
from wrong_plugins.backends.right import Right

BREAKS = "backend.static_addresses"


class Plugin(Right):
    def init_forward_metadata_out_graph(self, batch):
        self.ctx.static("square", (4, 4), torch.int64)
        self.square = self.ctx.static("square", (4, 4), torch.int64).t_()
        super().init_forward_metadata_out_graph(batch)
