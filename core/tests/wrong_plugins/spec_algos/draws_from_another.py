"""Draws from a sharper distribution than the one that it hands over."""

from __future__ import annotations

from wrong_plugins.spec_algos.draws import Draws

BREAKS = "spec_algo.distribution"


class Plugin(Draws):
    def drawn(self, said):
        return super().drawn(said**3 / (said**3).sum(-1, keepdim=True))
