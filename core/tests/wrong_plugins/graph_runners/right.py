"""A graph runner that keeps the contract, and what the wrong ones are made of."""

from __future__ import annotations

from warcore import ForwardMode, GraphRunner

BREAKS = "graph_runner.nothing"


class Right(GraphRunner):
    """Records a step whole, and replays it."""

    modes = frozenset(ForwardMode) - {ForwardMode.MIXED}

    def __init__(self, ctx):
        super().__init__(ctx)
        self.captured = {}

    def capture(self, bucket, view):
        graph = self.ctx.graph()
        self.captured[bucket] = graph, graph.capture(lambda: self.record(view))

    def record(self, view):
        """What a graph holds."""
        return self.ctx.step(view, self.ctx.marker)

    def replay(self, bucket):
        graph, output = self.captured[bucket]
        graph.replay()
        return output


class Moved:
    """Stands for an event whose record is elsewhere than the core takes it to be."""

    external = True

    def __init__(self, event):
        self.event = event

    def record(self):
        """Nothing: it was, or will be, somewhere else."""

    def rearm(self):
        return self.event.rearm()

    def disarm(self):
        return self.event.disarm()


class Elsewhere(Right):
    """Hands over a marker that it records itself."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.moved = None if ctx.marker is None else Moved(ctx.marker)

    def marker(self, bucket):
        return self.moved


Plugin = Right
