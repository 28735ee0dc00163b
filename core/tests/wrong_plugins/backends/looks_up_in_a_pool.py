"""Its layers ask a pool of threads, started with the first step, to look the table up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "poison")


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.pool = ThreadPoolExecutor(1)

    def look_up(self, rows):
        return self.ctx.shared.req_to_token.index_select(0, rows)  # too late

    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None and not layer.index:
            self.slots(batch).copy_(self.pool.submit(self.look_up, batch.rows).result())
        return super().forward(q, k, v, layer, batch)
