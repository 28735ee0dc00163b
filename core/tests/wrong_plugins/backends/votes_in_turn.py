"""It answers otherwise when it is asked again."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import SharedReadEnds

BREAKS = "backend.votes"


class Plugin(Right):
    asked = 0

    def shared_read_ends(self, forward_mode):
        self.asked += 1
        return list(SharedReadEnds)[self.asked % 2]
