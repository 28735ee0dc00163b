"""A backend that reads in its layers, says so, and breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import InLayers

BREAKS = "backend.nothing"


class Plugin(InLayers):
    """The right one under the name that the others have too."""
