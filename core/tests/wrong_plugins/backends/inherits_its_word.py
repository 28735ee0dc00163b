"""It wraps a backend, and its word is the base class's."""

from __future__ import annotations

from wrong_plugins.backends.right import Composite, InLayers

from warcore import AttentionBackend

BREAKS = "backend.composite"


class Plugin(Composite):
    kinds = InLayers, InLayers

    shared_read_ends = AttentionBackend.shared_read_ends
