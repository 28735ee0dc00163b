"""A backend that serves all there is, and breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import Windowed

BREAKS = "backend.nothing"


class Plugin(Windowed):
    """The right one under the name that the others have too."""
