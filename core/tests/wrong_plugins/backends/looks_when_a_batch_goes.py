"""Looks the table up once more when a batch is let go, to keep count."""

from __future__ import annotations

import weakref

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard",)


def count(table, counts):
    counts.append(int((table > 0).sum()))  # too late


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.counts = []

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        if batch.bucket is None:
            table = self.ctx.shared.req_to_token
            weakref.finalize(batch, count, table, self.counts).atexit = False
