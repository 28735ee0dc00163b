"""The prompts of a command: from its arguments, and from a file with one a line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warcore.cli.sections import option
from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STDIN = "-"
_ASK = "Prompts"


def prompt_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command prompts to answer: `prompts`, `prompts_file`, `system` and `raw`."""
    decorators = (
        click.argument("prompts", metavar="[PROMPT]...", nargs=-1),
        option(
            _ASK,
            "--prompts-file",
            metavar="F",
            help="One prompt on each line that is not blank, in UTF-8; -: the standard input.",
        ),
        option(
            _ASK, "--system", metavar="S", help="System message, in place of the template's own."
        ),
        option(_ASK, "--raw", is_flag=True, help="Continue the text itself: no chat template."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def read_prompts(given: Sequence[str], file: str | None) -> list[str]:
    """The prompts that were `given`, then those of `file`; `-` is the standard input.

    ConfigError if there is none, if the file cannot be read or holds none, and for bytes that are
    not UTF-8, with the place of the first.
    """
    prompts = [check_text(f"prompt {i}", text) for i, text in enumerate(given, 1)]
    if file is not None:
        prompts += _in_file(file)
    if not prompts:
        ctx = click.get_current_context(silent=True)
        command = "warcore generate" if ctx is None else ctx.command_path
        raise ConfigError(
            "there is no prompt to answer",
            next=f"{command} --model REF 'PROMPT', or --prompts-file FILE",
        )
    return prompts


def check_text(what: str, text: str) -> str:
    """`text`, which came from the command line; ConfigError for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{what} is not UTF-8 at character {error.start}",
            next="set a UTF-8 locale, or put the text into a UTF-8 file for --prompts-file",
        ) from None
    return text


def _in_file(file: str) -> list[str]:
    """Each line that is not blank, as it stands; a byte order mark is no part of the first."""
    data = _bytes(file)
    name = "standard input" if file == STDIN else file
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The offset counts from behind a byte order mark.
        at = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, at) + 1
        raise ConfigError(
            f"{name} is not UTF-8: byte {data[at]:#04x} at offset {at}, line {line}",
            next=f"iconv -f LATIN1 -t UTF-8 {name}" if file != STDIN else None,
        ) from None
    prompts = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    if not prompts:
        raise ConfigError(f"{name} holds no prompt", next="write one prompt on each line")
    return prompts


def _bytes(file: str) -> bytes:
    # None in a process that was started with the stream closed (`<&-`).
    if file == STDIN and sys.stdin is None:
        raise ConfigError("the standard input is closed", next="--prompts-file FILE")
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the prompts file {file}: {error.strerror or error}",
            next="--prompts-file FILE, a text file with one prompt on each line",
        ) from None
