"""Replays its largest steps once more, to be sure."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.fences"
DETECTORS = ("poison",)


class Plugin(Right):
    def replay(self, bucket):
        output = super().replay(bucket)
        return super().replay(bucket) if bucket.rows > 2 else output
