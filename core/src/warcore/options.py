"""Options of plugins: an attrs class per plugin, filled from `--opt NAME.key=value`."""

from __future__ import annotations

import difflib
import types
import typing
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class NoOptions:
    """A plugin without options."""


@attrs.frozen(eq=False)
class Chosen:
    """A plugin that serves in an engine."""

    name: str
    cls: Any
    options: object


def parse_options(owner: str, cls: type, given: Mapping[str, str]) -> object:
    """An instance of the attrs class `cls` from text values.

    owner: the plugin's name, for messages. ConfigError names the option, the value and the types
    that fit; an unknown key gets a suggestion.
    """
    fields = {f.name: f for f in attrs.fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            known = f"did you mean {owner}.{near[0]}?" if near else f"it has: {', '.join(fields)}"
            if not fields:
                known = "it has no options"
            raise ConfigError(f"{owner} has no option {key!r}", next=known)
        values[key] = _convert(owner, key, text, hints[key])
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of {owner}: {error}") from error


def _convert(owner: str, key: str, text: str, hint: Any) -> Any:
    """`text` as one of the types in `hint`; the first that fits, narrowest first."""
    members = typing.get_args(hint) if _is_union(hint) else (hint,)
    if type(None) in members and text.lower() in {"none", ""}:
        return None
    for kind in (bool, int, float, str):
        if kind in members:
            try:
                return _READ[kind](text)
            except ValueError:
                continue
    names = " or ".join(getattr(m, "__name__", str(m)) for m in members)
    raise ConfigError(f"--opt {owner}.{key}={text}: not {names}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in {typing.Union, types.UnionType}


def _bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


_READ: dict[type, Any] = {bool: _bool, int: int, float: float, str: str}
