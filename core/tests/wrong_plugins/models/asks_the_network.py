"""It looks for every name in the network."""

from __future__ import annotations

import socket

from wrong_plugins.models.right import Family

BREAKS = "model.recognises_is_cheap"


class Plugin(Family):
    @classmethod
    def recognises(cls, ref):
        socket.getaddrinfo("127.0.0.1", 80)
        return super().recognises(ref)
