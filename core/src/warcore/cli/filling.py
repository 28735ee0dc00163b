"""Filling: options of a command become an instance of the class whose fields they are."""

from __future__ import annotations

import functools
import shlex
from typing import TYPE_CHECKING, Any

import attrs
import click

from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorator = Callable[..., Any]


def filling(
    cls: type, argument: str, options: dict[str, Decorator], command: Callable[..., Any]
) -> Callable[..., Any]:
    """`command` with `options` (by field of `cls`), called with an instance as `argument`."""

    @functools.wraps(command)
    def filled(*args: Any, **given: Any) -> Any:
        values = {name: given.pop(name) for name in options}
        _check(cls, values)
        return command(*args, **{argument: cls(**values)}, **given)

    for decorate in reversed(options.values()):
        filled = decorate(filled)
    return filled


def _check(cls: type, values: dict[str, Any]) -> None:
    """ConfigError for a value that a field refuses, and for options that contradict each other."""
    for field, value in values.items():
        attribute = attrs.fields_dict(cls)[field]
        if attribute.validator is None:
            continue
        try:
            attribute.validator(None, attribute, value)
        except ConfigError as error:
            raise _of_option(error, field, value) from error
    if values.get("loop") == "normal" and values.get("fence") == "coarse":
        raise ConfigError(
            "--loop normal --fence coarse: the normal loop has no fence",
            next="leave out one of the two",
        )


def _of_option(error: ConfigError, field: str, value: Any) -> ConfigError:
    """`error` of a field with the option in its place, which is what a person typed."""
    ctx = click.get_current_context()
    name = next(p.opts[0] for p in ctx.command.params if p.name == field)
    allowed = (error.next or "").replace(f"{field} takes", "give").removesuffix(", or None")
    if not allowed.startswith("give "):
        return ConfigError(error.what.replace(f"{field}=", f"{name} "), next=error.next)
    words = value if isinstance(value, tuple) else (value,)
    numbers = all(isinstance(one, int) for one in words)
    shown = shlex.join([",".join(map(str, words))] if numbers else map(str, words))
    return ConfigError(f"{name} {shown}: {allowed}", next=f"{ctx.command_path} --help")


def default_of(cls: type, field: str) -> dict[str, Any]:
    """The default of the class, shown unless it is None: then the help says what None means."""
    value = getattr(attrs.fields(cls), field).default
    return {"default": value, "show_default": value is not None}
