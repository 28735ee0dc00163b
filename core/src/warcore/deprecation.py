"""What is to leave the contract, and the warning that says so for two minors before it does."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from warcore.records import Kind, PluginRecord


class ContractDeprecation(FutureWarning):
    """A plugin uses what is to leave the contract. Names its distribution and the page to read.

    It is shown to whoever runs the plugin, not to its author alone: they can ask for a newer one.
    """


@attrs.frozen
class Deprecated:
    """One method, or one argument of a method, that plugins of a kind should define no more."""

    kind: Kind
    method: str
    argument: str | None
    """None: the method itself."""
    since: str
    """The minor that warned first."""
    instead: str
    """What to do about it."""
    page: str
    """Where that is explained, in the documentation."""

    @property
    def gone(self) -> str:
        """The minor that does without it: two after the first warning."""
        major, minor = self.since.split(".")
        return f"{major}.{int(minor) + 2}"

    def is_used_by(self, plugin: type) -> bool:
        """Whether a class of the plugin's own defines it, and not only a base class of warcore."""
        for owner in plugin.__mro__:
            defined = vars(owner).get(self.method)
            if defined is not None and owner.__module__.partition(".")[0] != "warcore":
                return self.argument is None or self.argument in _arguments(defined)
        return False

    def __str__(self) -> str:
        return self.method if self.argument is None else f"{self.argument} of {self.method}"


DEPRECATED: Final[tuple[Deprecated, ...]] = ()
"""All that is to go. An entry comes with the minor that warns first, and goes with its subject."""


def warn_of_deprecated(record: PluginRecord, plugin: type) -> None:
    """A ContractDeprecation for each use in a plugin's class."""
    for each in DEPRECATED:
        if each.kind == record.kind and each.is_used_by(plugin):
            warnings.warn(
                f"{record}: it defines {each}, deprecated since warcore {each.since} and gone in "
                f"{each.gone}; {each.instead} (see {each.page})",
                ContractDeprecation,
                stacklevel=2,
            )


def _arguments(defined: object) -> tuple[str, ...]:
    """Those of a method as it stands in its class."""
    function = getattr(defined, "__func__", defined)
    return tuple(inspect.signature(function).parameters) if callable(function) else ()
