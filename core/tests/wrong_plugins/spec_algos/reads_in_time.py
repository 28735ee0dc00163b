"""Reads the page table itself, in its draft and by its vote, and lets the relay remember it."""

from __future__ import annotations

from wrong_plugins.spec_algos.remembers import Remembers

from warcore import SharedReadEnds

BREAKS = "spec_algo.nothing"


def table_of(algorithm):
    """The page table: an author who calls kernels of his own gets at its address like this."""
    return algorithm.ctx.target._backend.ctx.shared.req_to_token


class ReadsInTime(Remembers):
    def draft(self, batch):
        table_of(self).index_select(0, batch.rows)
        return super().draft(batch)

    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY


Plugin = ReadsInTime
