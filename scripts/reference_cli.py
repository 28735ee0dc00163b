"""The command line, as a page: from the commands and the help that they print."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def cli() -> Iterator[str]:
    """Every command with its arguments and options."""
    import click

    from warcore.cli.commands import COMMANDS

    yield "# The command line\n"
    yield "What `--json` prints is described in [the JSON documents](json.md).\n"
    for name, entry in COMMANDS.items():
        command = getattr(import_module(entry.module), entry.attribute)
        usage = " ".join(command.collect_usage_pieces(click.Context(command)))
        yield f"## warcore {name}\n"
        yield f"```\nwarcore {name} {usage}\n```\n"
        yield f"{inspect.cleandoc(command.help or entry.summary)}\n"
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                yield _option(param)
        yield ""


def _option(param: Any) -> str:
    names = ", ".join([*param.opts, *param.secondary_opts])
    kind = "|".join(getattr(param.type, "choices", ())) or str(param.type.name).upper()
    value = "" if param.is_flag else f" {param.metavar or kind}"
    words = " ".join((param.help or "").split())
    plain = isinstance(param.default, int | float | str) and not param.is_flag
    return f"- `{names}{value}`: {words}" + (f" [default: {param.default}]" if plain else "")
