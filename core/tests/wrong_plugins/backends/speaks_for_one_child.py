"""It answers for every mode as the child that serves some."""

from __future__ import annotations

from wrong_plugins.backends.right import Composite, InGraph, InLayers

BREAKS = "backend.composite"


class Plugin(Composite):
    kinds = InGraph, InLayers

    def shared_read_ends(self, forward_mode):
        return self.children[0].shared_read_ends(forward_mode)
