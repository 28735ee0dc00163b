"""A backend that finds layers with a window in a pool of their own, and breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import Pooled

BREAKS = "backend.nothing"


class Plugin(Pooled):
    """The right one under the name that the others have too."""
