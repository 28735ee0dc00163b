"""It copies before the replay, and says what the base class says."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

from warcore import AttentionBackend

BREAKS = "backend.could_be_earlier"
DETECTORS = ("guard",)


class Plugin(Right):
    shared_read_ends = AttentionBackend.shared_read_ends
