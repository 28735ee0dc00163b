"""It copies before the replay, and declares the metadata inside it."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import SharedReadEnds

BREAKS = "backend.could_be_earlier"
DETECTORS = ("guard",)


class Plugin(Right):
    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.IN_REPLAY
