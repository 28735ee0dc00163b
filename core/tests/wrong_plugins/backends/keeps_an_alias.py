"""It keeps a view of the table where it should keep a copy."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def gather(self, batch):
        self.view = self.ctx.shared.req_to_token[:]

    def slots(self, batch):
        return self.view[batch.rows].long()  # too late
