"""A backend that tells per prefill where its reads end, and breaks nothing."""

from __future__ import annotations

from wrong_plugins.backends.right import Snapshot

BREAKS = "backend.nothing"


class Plugin(Snapshot):
    """The right one under the name that the others have too."""
