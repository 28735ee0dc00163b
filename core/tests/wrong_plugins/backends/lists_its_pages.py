"""Its page sizes are a list."""

from __future__ import annotations

from wrong_plugins.backends.right import Right

BREAKS = "backend.why_not"


class Plugin(Right):
    page_sizes = [4, 16]  # noqa: RUF012 - what is wrong with it
