"""What the commands share for speaking to a person or to a program.

Results go to stdout, progress and errors to stderr. Colour is for terminals only, and NO_COLOR is
honoured.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import attrs
import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console
    from rich.progress import Progress

_Command = TypeVar("_Command", bound="Callable[..., Any]")


@attrs.define
class Session:
    """What holds for one run of the command line; the `obj` of every click context."""

    debug: bool = False
    command: str = "warcore"
    """What was typed before the options, for a hint at its help."""


def debug_option(command: _Command) -> _Command:
    """Give a command `--debug`, which adds the traceback to an error."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(Session).debug = True

    option = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="Show the traceback of an error.",
    )
    return option(command)


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no guessed highlights.

    In a pipe it is wide enough for any table, so that no name is ever cut. Print lines that hold a
    command with `soft_wrap=True`: the terminal folds them itself, and they can be copied whole.
    """
    from rich.console import Console

    class _Plain(Console):
        def on_broken_pipe(self) -> NoReturn:
            # rich would end the process with a code of its own; `main` knows what to do.
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 10_000
    return _Plain(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def progress(*columns: Any) -> Progress:
    """A progress bar on stderr that vanishes when it is done; silent where there is no terminal."""
    from rich.progress import Progress

    screen = console(stderr=True)
    # Some versions of rich end even a disabled bar with an empty line.
    screen.quiet = not screen.is_terminal
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def counted(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """So many bytes: kB below 1 MB, one decimal below 10 MB."""
    if count < 999_500:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.{1 if count < 9_950_000 else 0}f} MB"


def print_json(value: object) -> None:
    """One JSON document, indented; characters that stdout cannot encode are escaped."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(value, indent=2, ensure_ascii=not unicode))
