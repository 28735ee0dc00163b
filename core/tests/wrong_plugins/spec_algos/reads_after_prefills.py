"""Looks its slots up again after each prefill, and declares that nothing reads later."""

from __future__ import annotations

import torch
from wrong_plugins.spec_algos.reads_in_time import table_of
from wrong_plugins.spec_algos.remembers import Remembers

from warcore import TensorSpec

BREAKS = "spec_algo.later_prefill_reader"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(Remembers):
    @classmethod
    def relay(cls, spec):
        return {**super().relay(spec), "first": TensorSpec((), torch.int64)}

    def draft_extend(self, batch, accepted):
        super().draft_extend(batch, accepted)
        if batch.mode.is_prefill:
            first = table_of(self)[batch.rows, 0].long()
            self.ctx.relay["first"].index_copy_(0, batch.rows, first)
