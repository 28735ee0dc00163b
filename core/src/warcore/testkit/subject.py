"""Subject: the plugin that a check looks at, and where."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
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
    """Of a grid only the cell of this name, or those that fit it with wildcards; empty: all."""
    thorough: bool = False
    """Whether to walk the whole grid rather than the default one."""
    options: object = None
    """Options of its own, parsed; None: its defaults."""
    reference: str | None = None
    """Of a model family: the model to load, as a person writes it; None: one that needs no files.
    """
    dry: bool = False
    """Whether a check shall look at no cell, and only say which it has."""
    offered: dict[str, bool] = attrs.field(factory=dict, init=False, repr=False)
    """The cells of the check that runs, as far as it came, and whether they were asked for."""

    ends: dict[str, dict[str, str]] = attrs.field(factory=dict, init=False, repr=False)
    """By kind of graph and mode: where the reads end in the cells of the check that runs."""
    largest: dict[str, int] = attrs.field(factory=dict, init=False, repr=False)
    """Of all steps that the check has looked at: the largest of each size, see `sized`."""

    @property
    def set_options(self) -> dict[str, str]:
        """The options that differ from the defaults, as a person types them."""
        if self.options is None:
            return {}
        options: Any = self.options
        values = attrs.asdict(options, recurse=False)
        fields = attrs.fields(type(options))
        return {f.name: str(values[f.name]) for f in fields if values[f.name] != f.default}

    def wants(self, cell: object) -> bool:
        """Whether a check shall look at `cell`, whose name is its `str`."""
        name = str(cell)
        fits = not self.cells or name == self.cells or fnmatchcase(name, self.cells)
        self.offered[name] = fits
        return fits and not self.dry

    def sized(self, *, tokens: int, requests: int, head_dim: int) -> None:
        """A check looks at a step of these sizes: of its longest sequence, its batch, its heads."""
        for what, size in (("tokens", tokens), ("requests", requests), ("head_dim", head_dim)):
            self.largest[what] = max(size, self.largest.get(what, 0))

    def unmet(self) -> str:
        """Why nothing was looked at: the check has cells, and none was asked for; else empty."""
        if not self.offered or any(self.offered.values()):
            return ""
        near = get_close_matches(self.cells, self.offered, 3, 0.4)
        near += [name for name in self.offered if self.cells in name and name not in near][:3]
        hint = f"; there are {', '.join(map(repr, near[:3]))}" if near else ""
        return f"none of its {len(self.offered)} cells is called {self.cells!r}{hint}"
