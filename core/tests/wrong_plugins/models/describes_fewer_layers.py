"""It describes one layer less than it has."""

from __future__ import annotations

import attrs
from wrong_plugins.models.right import LAYERS, Family

BREAKS = "model.describe_agrees_with_load"


class Plugin(Family):
    @classmethod
    def describe(cls, ref, options):
        return attrs.evolve(super().describe(ref, options), layers=LAYERS[:-1])
