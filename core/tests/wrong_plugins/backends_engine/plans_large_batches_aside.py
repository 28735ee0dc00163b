"""Reads the page table of large batches on a stream of its own, which nobody waits for."""

from __future__ import annotations

from wrong_plugins.backends_engine.gathers_on_a_stream_of_its_own import Plugin as Aside

BREAKS = "backend.races"
DETECTORS = ("happens-before",)
LARGE = 6


class Plugin(Aside):
    def init_forward_metadata_out_graph(self, batch):
        if batch.padded_size < LARGE:
            self._gather(batch)
        else:
            super().init_forward_metadata_out_graph(batch)
