"""Serves the algorithms whose names it knows."""

from __future__ import annotations

from wrong_plugins.stagers.right import Right

BREAKS = "stager.why_not"


class Plugin(Right):
    @classmethod
    def why_not(cls, algorithm):
        known = algorithm.__name__.endswith(("Reader", "Readers"))
        return super().why_not(algorithm) if known else [f"{algorithm.__name__} is not known"]
