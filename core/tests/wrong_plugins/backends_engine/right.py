"""A backend that keeps the contract in a whole engine, and what the wrong ones are made of."""

from __future__ import annotations

from warcore.testkit.stands.paged import Paged

BREAKS = "backend.nothing"


class Right(Paged):
    """Gathers before the replay, in every mode."""

    @classmethod
    def why_not(cls, spec):
        return ["windows or trees"] if spec.tree or spec.windows != {None} else []


class Shortened(Right):
    """Lets go of what lies behind the longest sequence of a step: `longest` says how long it is."""

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        if batch.bucket is None:
            self.slots(batch)[:, self.longest(batch) :] = 0

    def longest(self, batch):
        return batch.max_seq_len


def device_of(ctx):
    """The device of the core: an author on CUDA has `torch.cuda.Stream` in its place."""
    return ctx.static.__self__.device


Plugin = Right
