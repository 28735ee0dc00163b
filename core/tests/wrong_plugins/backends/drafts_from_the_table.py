"""As a draft's backend it looks its pages up in its layers; its votes are those of a target's."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def forward(self, q, k, v, layer, batch):
        if self.ctx.spec.role == "draft":
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
