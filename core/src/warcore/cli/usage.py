"""Mistakes in a command line, told as every other error is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from warcore.errors import ConfigError
from warcore.records import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence


class OneOf(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """Some words, of which an option takes one; another gets the nearest as a suggestion."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if param is None or value in self.choices:
            return super().convert(value, param, ctx)
        name = param.opts[0]
        raise ConfigError(
            f"{name} does not take {value!r}{suggestion(str(value), self.choices)}",
            next=f"{name} {'|'.join(self.choices)}",
        )


def told(error: click.ClickException, command: str) -> ConfigError:
    """What click refused: who, what, and what to type. command: what stood before the options."""
    manual = f"{command} --help"
    if isinstance(error, click.NoSuchOption):
        known = [name for p in error.ctx.command.params for name in p.opts] if error.ctx else []
        near = suggestion(error.option_name, known)
        return ConfigError(f"there is no option {error.option_name}{near}", next=manual)
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        name = error.param.opts[0]
        missing = isinstance(error, click.MissingParameter)
        wrong = " is missing" if missing else f": {error.message.rstrip('.')}"
        return ConfigError(f"{name}{wrong}", next=f"{name} {error.param.metavar}; {manual}")
    text = error.format_message().rstrip(".")
    return ConfigError(text[:1].lower() + text[1:], next=manual)
