"""A backend that breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.nothing"


class Plugin(Right):
    """The right one under the name that the others have too."""
