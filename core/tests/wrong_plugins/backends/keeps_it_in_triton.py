"""A backend whose reads are in a kernel, early enough, and that breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.in_triton import InTriton

BREAKS = "backend.nothing"


class Plugin(InTriton):
    """The right one under the name that the others have too."""
