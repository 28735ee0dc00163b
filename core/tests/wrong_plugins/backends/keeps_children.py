"""A backend that holds two others, and breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import Composite

BREAKS = "backend.nothing"


class Plugin(Composite):
    """The right one under the name that the others have too."""
