"""It has no answer for prefills."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import SharedReadEnds

BREAKS = "backend.votes"


class Plugin(Right):
    def shared_read_ends(self, forward_mode):
        return None if forward_mode.is_prefill else SharedReadEnds.PRE_REPLAY
