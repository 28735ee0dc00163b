"""It writes the table through an array of numpy."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.never_writes"
DETECTORS = ("guard",)


class Plugin(Right):
    def init_forward_metadata_out_graph(self, batch):
        self.ctx.shared.req_to_token.numpy()[0, 0] = 0  # not its to write
        super().init_forward_metadata_out_graph(batch)
