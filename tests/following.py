"""Pages as somebody meets them who types every command and saves every file."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent


@attrs.frozen
class Block:
    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file(self) -> str | None:
        """Where a reader is told to put it."""
        return next((w.removeprefix("file=") for w in self.words if w.startswith("file=")), None)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: tuple[int, list[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if opened is None and line.startswith("```"):
            opened, lines = (number, line[3:].split()), []
        elif opened is not None and line == "```":
            language, *words = opened[1] or [""]
            text = "".join(f"{each}\n" for each in lines)
            found.append(Block(page, opened[0], language, tuple(words), text))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{page}:{opened[0]} is never closed"
    return found


class Reader:
    """Somebody who follows a page from its first block to its last, in one folder.

    What is not typed but checked: `make TARGET` (the target exists), `source` of the virtual
    environment, benchmarks and pytest calls on this tree (their paths exist). `pip` installs the
    page's package into a folder of the reader's own.
    """

    def __init__(self, folder: Path):
        self.folder = folder / "work"
        self.site = folder / "site"
        self.names = {"__name__": "page"}
        self.folder.mkdir()
        self.site.mkdir()

    def follow(self, page: Path, *, model: bool) -> None:
        every = blocks(page)
        for block, after in zip(every, [*every[1:], None], strict=True):
            if "model" in block.words and not model:
                continue
            if block.file:
                path = self.folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                said = self.python(block)
                if after is not None and "output" in after.words:
                    assert alike(said, after.text), f"{after} is not what {block} prints:\n{said}"
            elif block.language == "bash":
                for command in filter(None, map(str.strip, block.text.splitlines())):
                    self.command(command, block)
            elif block.language == "console":
                for command, expected in conversation(block.text):
                    said = self.command(command, block)
                    assert alike(said, expected), f"{block}: {command}\n{said}"

    def python(self, block: Block) -> str:
        code = compile("\n" * block.line + block.text, str(ROOT / block.page), "exec")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, self.names)
        return said.getvalue()

    def command(self, command: str, block: Block) -> str:
        words = shlex.split(command, comments=True)
        if not words or checked(words, block):
            return ""
        if words[0] == "cd":
            self.folder /= words[1]
            return ""
        if words[0] == "pip":
            return self.pip(words[1:])
        return self.shell(command, ROOT if "scripts/" in command else self.folder)

    def pip(self, words: list[str]) -> str:
        if words[0] == "uninstall":
            shutil.rmtree(self.site)
            self.site.mkdir()
            return ""
        assert words == ["install", "-e", "."]
        quiet = "-q --disable-pip-version-check --no-index --no-deps --no-build-isolation"
        return self.shell(f"python -m pip install {quiet} --target {self.site} .", self.folder)

    def shell(self, command: str, place: Path) -> str:
        done = self.bash(command, place)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def bash(self, command: str, place: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=place,
            env=self.environment(),
            text=True,
            capture_output=True,
            check=False,
            timeout=280,
        )

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(self.site),
            "NO_COLOR": "1",
            "XDG_CACHE_HOME": str(self.site.parent / "cache"),
        }


class Settler(Reader):
    """A reader with a virtual environment of their own, in which pip does what is typed.

    It holds `wheels`; what else is needed lends the running environment, and nothing is fetched.
    """

    def __init__(self, folder: Path, wheels: Iterable[Path]):
        super().__init__(folder)
        self.home = folder / "venv"
        python = self.home / "bin/python"
        self.run(sys.executable, "-m", "venv", self.home)
        self.run(python, "-m", "pip", "install", *wheels)
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(self.run(python, "-c", where).strip())
        # NOTE: a .pth adds a folder and does not read the .pth files in it, so that the editable
        # installs of this environment stay out of the other.
        (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")

    def run(self, *command: object) -> str:
        return self.shell(shlex.join(map(str, command)), self.folder)

    def attempt(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run what may fail."""
        return self.bash(shlex.join(map(str, command)), self.folder)

    def command(self, command: str, block: Block) -> str:
        if command.startswith("pip "):
            return self.shell(command, self.folder)
        return super().command(command, block)

    def environment(self) -> dict[str, str]:
        """That of a shell in which the environment is active; pip is offline and brings nothing."""
        system = [
            p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != Path(sys.prefix, "bin")
        ]
        inherited = {k: v for k, v in super().environment().items() if k != "PYTHONPATH"}
        return {
            **inherited,
            "PATH": os.pathsep.join([str(self.home / "bin"), *system]),
            "VIRTUAL_ENV": str(self.home),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            # NOTE: pip turns an option off that says no; this one switches isolation off.
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }


def checked(words: list[str], block: Block) -> bool:
    """Whether it is one of the commands that are checked and not run; asserts what they name."""
    program, *rest = words
    if program == "make":
        targets = re.findall(
            r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert rest[0] in targets, f"{block}: no target {rest[0]}"
        return True
    if program == "source":
        return rest == [".venv/bin/activate"]
    if program == ".venv/bin/python" or (program == "python" and "benchmarks/" in rest[0]):
        named = [word for word in rest if "/" in word]
        assert all((ROOT / word.partition("::")[0]).exists() for word in named), f"{block}: {words}"
        return True
    return False


def conversation(text: str) -> list[tuple[str, str]]:
    """[(command, what it answers)] of a console block."""
    turns = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(turn.partition("\n")[0], turn.partition("\n")[2]) for turn in turns]


def alike(said: str, expected: str) -> bool:
    """Whether the answer is the expected one, in which `...` stands for anything."""
    pattern = ".*?".join(map(re.escape, expected.strip("\n").split("...")))
    return re.fullmatch(pattern, said.strip("\n"), re.DOTALL) is not None
