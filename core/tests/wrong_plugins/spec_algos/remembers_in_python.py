"""Remembers by row what followed, in a dict of its own in place of the relay."""

from __future__ import annotations

import torch
from wrong_plugins.spec_algos.remembers import Remembers

BREAKS = "spec_algo.relay_only"


class Plugin(Remembers):
    @classmethod
    def relay(cls, spec):
        return {}

    def __init__(self, ctx):
        super().__init__(ctx)
        self.by_size = {}

    def table(self):
        if not self.by_size:
            self.by_size["all"] = torch.zeros(64, self.ctx.spec.target.vocab_size).long()
        return self.by_size["all"]
