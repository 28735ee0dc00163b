"""Its first step of each kind copies early, all later ones late."""

from __future__ import annotations

from collections import Counter

from wrong_plugins.backends.right import Right

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Right):
    def __init__(self, ctx):
        super().__init__(ctx)
        self.steps = Counter()

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        self.steps[batch.mode, batch.bucket] += 1

    def forward(self, q, k, v, layer, batch):
        if self.steps[batch.mode, batch.bucket] > 1:
            self.gather(batch)  # too late
        return super().forward(q, k, v, layer, batch)
