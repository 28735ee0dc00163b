"""It wants windows, and takes the tree that a step was captured with for that of every replay."""

from __future__ import annotations

import attrs
from wrong_plugins.backends.right import Windowed

BREAKS = "backend.parity"


class Plugin(Windowed):
    @classmethod
    def why_not(cls, spec):
        return ["no windows"] if spec.windows == {None} else []

    def __init__(self, ctx):
        super().__init__(ctx)
        self.trees = {}

    def init_forward_metadata_out_graph(self, batch):
        super().init_forward_metadata_out_graph(batch)
        if batch.tree_mask is not None and batch.bucket is not None:
            self.trees.setdefault(batch.bucket, batch.tree_mask.clone())

    def branch(self, at, batch):
        tree = self.trees.get(batch.bucket, batch.tree_mask)
        return super().branch(at, attrs.evolve(batch, tree_mask=tree))
