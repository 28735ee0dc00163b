"""Loads what is live, and leaves behind it what a larger batch has left."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.smaller_after_larger"


class Plugin(Right):
    def load(self, batch, bucket):
        slots = self._inputs._out_slots.clone()
        view = super().load(batch, bucket)
        view.out_slots[batch.padded_tokens :] = slots[batch.padded_tokens : bucket.tokens]
        return view
