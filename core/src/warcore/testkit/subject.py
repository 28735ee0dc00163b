"""Subject: the plugin that a check looks at, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from warcore.records import PluginRecord


@attrs.frozen(eq=False)
class Subject:
    """One plugin under check."""

    record: PluginRecord
    """Who it is: kind, name, distribution, entry point."""
    cls: Any
    """Its class."""
    device: str = "host"
    """`host` or `cuda`: the device that it is checked on."""
    cells: str = ""
    """A pattern: of a grid only the cells whose name holds it; empty: all."""
    thorough: bool = False
    """Whether to walk the whole grid rather than the default one."""
    options: object = None
    """Options of its own, parsed; None: its defaults."""
