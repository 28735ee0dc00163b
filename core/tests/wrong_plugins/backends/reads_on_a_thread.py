"""A thread of its own gathers, while the layers run."""

from __future__ import annotations

from threading import Thread

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if batch.bucket is None and not layer.index:
            found = []
            thread = Thread(target=lambda: found.append(self.ctx.shared.req_to_token.clone()))
            thread.start()
            thread.join()
            self.slots(batch).copy_(found[0][batch.rows])
        return super().forward(q, k, v, layer, batch)
