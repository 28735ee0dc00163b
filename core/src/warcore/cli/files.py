"""Files that a command writes: refused before the work begins, and whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from warcore.cli.streams import OutputError
from warcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.frozen
class Target:
    """Where a file will be written, found to be writable."""

    path: Path
    option: str
    """The option that named it."""

    @classmethod
    def of(cls, option: str, name: str) -> Target:
        """ConfigError if no file could be written there now; leaves nothing behind."""
        if name in {"", "-"}:
            what = "no file" if not name else "the standard output, which takes the summary"
            raise ConfigError(f"{option} {name!r} names {what}", next=f"{option} FILE")
        try:
            target = cls(_real(option, Path(name)), option)
            target._part.touch(exist_ok=False)
            target._part.unlink()
        except OSError as error:
            raise ConfigError(
                f"{option} {name} cannot be written: {error.strerror or error}",
                next=f"{option} FILE in a folder that you may write",
            ) from error
        return target

    def write(self, pieces: Iterable[str]) -> None:
        """Replace the file by the pieces, one after another, in UTF-8.

        OutputError if that fails; whatever was there before is there still.
        """
        try:
            try:
                with self._part.open("x", encoding="utf-8", newline="\n") as file:
                    file.writelines(pieces)
                self._part.replace(self.path)
            except BaseException:
                with suppress(OSError):
                    self._part.unlink()
                raise
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path}: {error.strerror or error}",
                next=f"{self.option} FILE in a place that can hold it",
            ) from error

    @property
    def _part(self) -> Path:
        """Where it grows: in the same folder, so that putting it in place is one step."""
        return self.path.with_name(f".warcore.{os.getpid()}.part")


def _real(option: str, path: Path) -> Path:
    """Where a link leads: that is written, and the link stays. ConfigError for what is no file."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder", next=f"{option} {path / 'FILE'}")
    # Replacing a device or a pipe would remove it for everybody.
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path} is no regular file", next=f"{option} FILE")
    real = Path(os.path.realpath(path))
    if not real.parent.is_dir():
        raise ConfigError(
            f"{option} {path}: there is no folder {real.parent}", next=f"mkdir -p {real.parent}"
        )
    return real


def distinct(targets: Iterable[Target]) -> None:
    """ConfigError if two of the targets are one file."""
    seen: dict[Path, Target] = {}
    for target in targets:
        first = seen.setdefault(target.path, target)
        if first is not target:
            raise ConfigError(
                f"{first.option} and {target.option} name one file, {target.path}",
                next=f"another file for {target.option}",
            )
