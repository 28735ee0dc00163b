"""Its vote takes an argument that there is not."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import SharedReadEnds

BREAKS = "backend.votes"


class Plugin(Right):
    def shared_read_ends(self, forward_mode, batch):
        return SharedReadEnds.PRE_REPLAY
