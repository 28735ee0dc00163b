"""A backend that reads in the graph, says so, and breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import InGraph

BREAKS = "backend.nothing"


class Plugin(InGraph):
    """The right one under the name that the others have too."""
