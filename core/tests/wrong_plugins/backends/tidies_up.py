"""It puts the padding row in order before it copies."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.never_writes"
DETECTORS = ("guard", "attribution")


class Plugin(Right):
    def init_forward_metadata_out_graph(self, batch):
        self.ctx.shared.req_to_token[0].zero_()  # not its to write
        super().init_forward_metadata_out_graph(batch)
