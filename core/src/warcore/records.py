"""The record of one plugin, and how it becomes a class.

A record says who the plugin is, where it comes from, whether it can be used, and if not, why and
what to type. Only `load` imports it.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import attrs

from warcore.deprecation import warn_of_deprecated
from warcore.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["backend", "graph_runner", "spec_algo", "stager", "model"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_BASES: Final[dict[Kind, tuple[str, str]]] = {
    "backend": ("warcore.backend", "AttentionBackend"),
    "graph_runner": ("warcore.graphs", "GraphRunner"),
    "spec_algo": ("warcore.spec", "SpecAlgorithm"),
    "stager": ("warcore.stager", "Stager"),
    "model": ("warcore.model", "ModelFamily"),
}

State = Literal[
    "available", "loaded", "broken", "incompatible", "conflict", "disabled", "stale", "unavailable"
]


@attrs.frozen
class PluginRecord:
    """What is known of one plugin.

    available: it can be chosen. loaded: it was imported and is a plugin of its kind. broken: it
    cannot be imported, or its metadata is damaged. incompatible: its own requirement excludes this
    warcore. conflict: another distribution has a plugin of this kind and name. disabled: switched
    off by the user. stale: an editable install whose pyproject.toml says something else now.
    unavailable: it loads, and says that this machine lacks what it needs.
    """

    kind: Kind
    name: str
    distribution: str | None
    """None for a class that was given directly."""
    version: str | None
    entry_point: str
    """MODULE:CLASS."""
    file: str | None = None
    """The module's file, found without importing it; None where only an import can tell."""
    requires: str | None = None
    """The distribution's requirement on warcore."""
    state: State = "available"
    cause: str | None = None
    """Why it is not available, in a few words."""
    next: str | None = None
    """The command to type about `cause`."""
    given: type | None = attrs.field(default=None, repr=False)
    """The class itself, where it was given directly."""

    @classmethod
    def of_class(cls, kind: Kind, plugin: type) -> PluginRecord:
        """A record of a class that did not come from an entry point, so that errors name it.

        PluginError if `plugin` is not a usable class of its kind.
        """
        where = f"{plugin.__module__}:{plugin.__qualname__}" if isinstance(plugin, type) else ""
        module = sys.modules.get(plugin.__module__) if where else None
        record = cls(
            kind,
            getattr(plugin, "__name__", repr(plugin)),
            None,
            None,
            where,
            file=getattr(module, "__file__", None),
            state="loaded",
            given=plugin,
        )
        _check(record, plugin)
        return record

    @property
    def needs_attention(self) -> bool:
        """Whether something is wrong that a person did not ask for."""
        return self.state not in {"available", "loaded", "disabled"}

    @property
    def origin(self) -> str:
        """Its distribution and version, or the class that was given."""
        if self.distribution is None:
            return self.entry_point
        return f"{self.distribution} {self.version or '(no version)'}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.origin})"


class LoadError(PluginError):
    """A plugin could not be loaded; `cause` is the message without the plugin's name."""

    def __init__(self, record: PluginRecord, cause: str, *, next: str | None = None) -> None:  # noqa: A002
        super().__init__(f"{record}: {cause}", next=next)
        self.cause = cause


def load(record: PluginRecord) -> type:
    """Import the plugin's class and check that it is a usable class of its kind.

    LoadError with the original exception chained: a module is missing, the import raised, the
    class is not there, is no subclass of its kind's base class, or leaves methods undefined.
    """
    if record.given is not None:
        return record.given
    module, _, attribute = record.entry_point.partition(":")
    try:
        plugin: Any = import_module(module)
    except (Exception, SystemExit) as error:
        raise _import_error(record, module, error) from error
    for part in attribute.split("."):
        if not hasattr(plugin, part):
            cause = f"{module} has no {attribute}{suggestion(part, dir(plugin))}"
            raise LoadError(record, cause, next=reinstall(record))
        plugin = getattr(plugin, part)
    _check(record, plugin)
    return plugin  # type: ignore[no-any-return]


def base_of(kind: Kind) -> type:
    """The class that every plugin of `kind` derives from."""
    module, name = _BASES[kind]
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def _check(record: PluginRecord, plugin: Any) -> None:
    base = base_of(record.kind)
    cause = None
    if not isinstance(plugin, type):
        cause = f"it is a {type(plugin).__name__}, not a class"
    elif not issubclass(plugin, base):
        cause = f"{plugin.__qualname__} is not a subclass of warcore.{base.__name__}"
    elif inspect.isabstract(plugin):
        missing = ", ".join(sorted(getattr(plugin, "__abstractmethods__", ())))
        cause = f"{plugin.__qualname__} does not define {missing}"
    if cause is not None:
        raise LoadError(record, cause, next=reinstall(record))
    warn_of_deprecated(record, plugin)


def flawed(record: PluginRecord, state: State, cause: str, remedy: str | None) -> PluginRecord:
    """The record with what is wrong and the command to type about it."""
    return attrs.evolve(record, state=state, cause=cause, next=remedy)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest of `known` was meant: a tail for a message, empty if none is near."""
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """What somebody who typed `name` most likely meant; None if nothing is near."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def _import_error(record: PluginRecord, module: str, error: BaseException) -> LoadError:
    """What went wrong in `import module`, in a line, and what to type about it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return LoadError(record, f"there is no module {missing}", next=reinstall(record))
    if missing is not None:
        # `pip install` of what is installed already still fetches requirements that are missing.
        cause = f"it needs the module {missing}, which is not installed"
        return LoadError(record, cause, next=f"pip install {record.distribution}")
    text = next(iter(str(error).splitlines()), "")
    if isinstance(error, SyntaxError) and error.filename:
        # It was raised where the file was compiled, and is about a line of that file.
        text, file, line = error.msg, error.filename, error.lineno
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
    cause = f"importing it raised {type(error).__name__}: {text} ({file}:{line})"
    return LoadError(record, cause, next=f"python -c {shlex.quote(f'import {module}')}")


def reinstall(record: PluginRecord) -> str | None:
    """The command for a distribution that is itself at fault; None for a class given directly."""
    if record.distribution is None:
        return None
    return f"pip install --upgrade --force-reinstall --no-deps {record.distribution}"
