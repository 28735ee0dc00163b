"""Makes a plan when it votes, and keeps it for the thread that asked."""

from __future__ import annotations

import threading

from wrong_plugins.backends_engine.right import Shortened

BREAKS = "backend.schedules"
DETECTORS = ("seeded schedules",)


class Plugin(Shortened):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.local = threading.local()

    def shared_read_ends(self, forward_mode):
        self.local.most = self.ctx.spec.max_context
        return self.vote

    def init_forward_metadata_out_graph(self, batch):
        most = getattr(self.local, "most", 0)
        self._gather(batch)
        self.slots(batch)[:, most:] = 0
