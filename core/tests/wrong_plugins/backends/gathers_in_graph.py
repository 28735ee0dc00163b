"""It declares its reads done before the replay, and the graph gathers."""

from __future__ import annotations

from wrong_plugins.backends.right import InGraph

from warcore import SharedReadEnds

BREAKS = "backend.no_late_access"
DETECTORS = ("guard", "attribution", "poison")


class Plugin(InGraph):
    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.PRE_REPLAY
