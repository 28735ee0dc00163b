"""The command line. Each command has a file of its own, imported when it is typed."""

from __future__ import annotations

from warcore.cli.commands import main

__all__ = ["main"]
