"""Gives what it has when a replay is refused."""

from __future__ import annotations

from contextlib import suppress

from wrong_plugins.graph_runners.right import Right

from warcore import WarcoreError

BREAKS = "graph_runner.addresses"


class Plugin(Right):
    def replay(self, bucket):
        graph, output = self.captured[bucket]
        with suppress(WarcoreError):
            graph.replay()
        return output
