"""It asks its metadata where its reads end, and there is none yet."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.votes"


class Plugin(Right):
    metadata = None

    def shared_read_ends(self, forward_mode):
        return self.metadata.ends[forward_mode]
