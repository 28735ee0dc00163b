"""Backends that read the table where they say, and such as do not, on any device."""

from __future__ import annotations

from warcore import PluginRecord, SharedReadEnds
from warcore.testkit.stands.paged import Paged, paged
from warcore.testkit.subject import Subject

VOTES = (SharedReadEnds.PRE_REPLAY, SharedReadEnds.IN_REPLAY, SharedReadEnds.POST_REPLAY)


def plain(vote):
    """The kit's own backend, on shapes that it can serve."""

    def why_not(cls, spec):
        return ["windows or trees"] if spec.tree or spec.windows != {None} else []

    return type(vote.name, (paged(vote),), {"why_not": classmethod(why_not)})


class InLayers(Paged):
    """Reads in its layers, and declares the marker."""

    vote = SharedReadEnds.IN_REPLAY

    def forward(self, q, k, v, layer, batch):
        self._gather(batch)
        return super().forward(q, k, v, layer, batch)


class InMetadata(Paged):
    """Reads in the metadata of its graph, and declares the time before."""

    def init_forward_metadata_in_graph(self, batch):
        self._gather(batch)


class Alias(Paged):
    """Keeps no copy at all."""

    def slots(self, batch):
        return self.ctx.shared.req_to_token.index_select(0, batch.rows).long()

    def _gather(self, batch):
        pass


LATE = (InLayers, InMetadata, Alias)


def subject_of(cls, device="host", **facts):
    return Subject(PluginRecord.of_class("backend", cls), cls, device, **facts)
