"""It refuses what it has accepted."""

from __future__ import annotations

from typing import ClassVar

from wrong_plugins.backends.right import Right

BREAKS = "backend.why_not"


class Plugin(Right):
    seen: ClassVar[set] = set()

    @classmethod
    def why_not(cls, spec):
        again = spec in cls.seen
        cls.seen.add(spec)
        return ["it was asked before"] if again else super().why_not(spec)
