"""The source files of a plugin's package, what they import, and whose code a file is."""

from __future__ import annotations

import ast
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from warcore.testkit.access import Place
from warcore.testkit.outcome import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warcore.records import PluginRecord


KIT: Final = str(Path(__file__).parents[1])
"""The folder of the kit's own code."""


class Import(NamedTuple):
    """One import statement's one name."""

    place: Place
    module: str
    name: str | None
    """What it takes from the module; None: the module itself."""
    optional: bool
    """Whether it may fail: below `try:`, or for the type checker alone."""


@attrs.frozen(slots=False)
class Package:
    """The topmost package that holds a plugin's class, or its only module."""

    root: Path
    """A directory, or a file."""

    @classmethod
    def of(cls, record: PluginRecord) -> Package:
        """The package of a plugin. NotApplicable where there is no Python source."""
        file = Path(record.file) if record.file else None
        if file is None or file.suffix != ".py" or not file.is_file():
            raise NotApplicable(f"there is no Python source of {record.entry_point}")
        root = file
        while (root.parent / "__init__.py").is_file():
            root = root.parent
        return cls(root)

    @property
    def name(self) -> str:
        """As it is imported."""
        return self.root.stem

    @cached_property
    def modules(self) -> tuple[tuple[Path, ast.Module], ...]:
        """Every Python file that can be parsed, with its syntax tree."""
        files = sorted(self.root.rglob("*.py")) if self.root.is_dir() else [self.root]
        return tuple(_parsed(files))

    def imports(self) -> Iterator[Import]:
        """Every absolute import, late ones too, and `import_module` of a constant name."""
        for path, tree in self.modules:
            yield from _imports(path, tree, optional=False)


def place_of(path: Path | str, line: int) -> Place:
    """A line of a file, with its text if it can be read."""
    try:
        text = Path(path).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, ValueError, IndexError):
        text = ""
    return Place(str(path), line, text)


def _parsed(files: list[Path]) -> Iterator[tuple[Path, ast.Module]]:
    for path in files:
        # If anything needs a file that is no Python, loading fails, and says more about it.
        with suppress(SyntaxError, ValueError):
            yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(path: Path, node: ast.AST, *, optional: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for line, module, name in _of(child):
            yield Import(place_of(path, line), module, name, optional)
        if isinstance(child, ast.Try):
            for part in child.body:
                yield from _imports(path, ast.Module([part], []), optional=True)
            rest = ast.Module([*child.handlers, *child.orelse, *child.finalbody], [])  # type: ignore[list-item]
            yield from _imports(path, rest, optional=optional)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _imports(path, ast.Module(child.body, []), optional=True)
            yield from _imports(path, ast.Module(child.orelse, []), optional=optional)
        else:
            yield from _imports(path, child, optional=optional)


def _of(node: ast.AST) -> Iterator[tuple[int, str, str | None]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
        match node.args:
            case [ast.Constant(value=str(name)), *_]:
                yield node.lineno, name, None


def homes_of(cls: Any) -> tuple[str, ...]:
    """The folders and files that hold the code of a plugin and of what it derives from."""
    found: dict[str, None] = {}
    for base in getattr(cls, "__mro__", (cls,)):
        top = getattr(base, "__module__", "builtins").partition(".")[0]
        if top in {"warcore", "builtins", "abc", "typing", "torch"}:
            continue
        module, own = sys.modules.get(top), sys.modules.get(base.__module__)
        folders = [str(place) for place in getattr(module, "__path__", ())]
        # A namespace package may hold anybody's modules.
        file = getattr(module, "__file__", None) and folders
        found |= dict.fromkeys(file or [f for f in [getattr(own, "__file__", None)] if f])
    return tuple(found)


def is_home(file: str, homes: Sequence[str]) -> bool:
    """Whether `file` is a plugin's own."""
    return any(file == home or file.startswith(f"{home}/") for home in homes)
