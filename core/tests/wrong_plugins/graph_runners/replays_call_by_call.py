"""Makes the recorded calls itself, past what looks at their memory."""

from __future__ import annotations

from wrong_plugins.graph_runners.right import Right

BREAKS = "graph_runner.addresses"


class Plugin(Right):
    def replay(self, bucket):
        graph, output = self.captured[bucket]
        graph._stream = graph._device.current_stream()
        for step in graph._steps:
            step()
        return output
