"""It answers with a number."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.votes"


class Plugin(Right):
    def shared_read_ends(self, forward_mode):
        return 0
