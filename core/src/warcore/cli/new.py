"""`warcore new`: the package of a plugin, green under `warcore check` from the first minute."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

import click

from warcore import __version__
from warcore.cli.output import debug_option, print_json
from warcore.cli.streams import OutputError
from warcore.cli.templates import Plugin, filled, kind_of
from warcore.errors import ConfigError

SCHEMA = 1


@click.command("new")
@click.argument("kind", metavar="KIND")
@click.argument("name", metavar="NAME")
@click.option(
    "--dir",
    "folder",
    metavar="D",
    help="The folder of the package, new or empty  [default: its distribution's name]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the text.")
@debug_option
def new(*, kind: str, name: str, folder: str | None, as_json: bool) -> None:
    """Write the package of a new plugin NAME: one that works, to be changed step by step.

    KIND is `backend` or `spec_algo`. The package has a class that keeps the contract, tests, a
    README, a changelog, a CI file and a licence, and requires this minor of warcore. Nothing that
    is there is overwritten. Exit code: 0 if all of it was written, else 2.
    """
    plugin = Plugin.named(kind_of(kind), name)
    target = _vacant(Path(folder if folder is not None else plugin.distribution))
    texts = filled(plugin)
    _write(target, texts)
    commands = _commands(plugin, target)
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "warcore": __version__,
                "kind": plugin.kind,
                "name": plugin.name,
                "distribution": plugin.distribution,
                "entry_point": f"{plugin.module}:{plugin.cls}",
                "folder": str(target),
                "files": list(texts),
                "next": commands,
            }
        )
        return
    click.echo(f"{plugin.kind} {plugin.name}: {len(texts)} files in {target}")
    for path in texts:
        click.echo(f"    {path}")
    click.echo("Next:")
    for command in commands:
        click.echo(f"    {command}")


def _vacant(folder: Path) -> Path:
    """The folder, if a package can be written there. ConfigError if something is in the way."""
    other = "--dir D, a folder that is new or empty"
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty, and nothing is overwritten", next=other)
        if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
            raise ConfigError(f"{folder} is no folder", next=other)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}", next=other) from error
    return folder


def _write(folder: Path, texts: dict[str, str]) -> None:
    """All files or none. OutputError if that fails."""
    made: list[Path] = []
    try:
        try:
            for name, text in texts.items():
                path = folder / name
                made += _make(path.parent)
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    made.append(path)
                    file.write(text)
        except BaseException:
            for path in reversed(made):
                with suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()
            raise
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror or error}",
            next="--dir D in a place that can hold it",
        ) from error


def _make(folder: Path) -> list[Path]:
    """Make a folder and those above it; the new ones, the outermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir()
    return missing[::-1]


def _commands(plugin: Plugin, folder: Path) -> list[str]:
    """What to type next, from install to the plugin's own tests."""
    here = str(folder) in {"", os.curdir}
    return [
        *([] if here else [f"cd {shlex.quote(str(folder))}"]),
        "pip install hatchling -e '.[test]'",
        f"warcore check {plugin.name}",
        "pytest",
    ]
