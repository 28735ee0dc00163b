"""It reads in its layers, and declares that it does not."""

from __future__ import annotations

from wrong_plugins.backends.right import InLayers

from warcore import SharedReadEnds

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(InLayers):
    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY
