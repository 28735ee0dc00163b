"""A model that breaks nothing."""

from __future__ import annotations

from wrong_plugins.models.right import Family

BREAKS = "model.nothing"


class Plugin(Family):
    """The right one under the name that the others have too."""
