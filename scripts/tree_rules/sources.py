"""Which files a workspace consists of, and their syntax trees."""

from __future__ import annotations

import ast
import subprocess
from typing import TYPE_CHECKING

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest and mypy bring tomli there
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def files(root: Path) -> list[Path]:
    """Every file that git tracks or would add; without git, every file."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        listed = (root / name for name in done.stdout.split("\0") if name)
    else:
        listed = (path for path in root.rglob("*") if "__pycache__" not in path.parts)
    return sorted(path for path in listed if path.is_file())


def texts(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file that is not binary, with its text."""
    for path in files(root):
        data = path.read_bytes()
        if b"\0" not in data:
            yield path, data.decode("utf-8", "replace")


def modules(root: Path, *patterns: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file below the folders that match `patterns`, parsed."""
    for pattern in patterns:
        for folder in sorted(root.glob(pattern)):
            for path in sorted(folder.rglob("*.py")):
                yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def distributions(root: Path) -> Iterator[tuple[Path, dict[str, object]]]:
    """Every pyproject.toml of core/ and plugins/, with its [project] table."""
    for path in sorted(
        [*root.glob("core/pyproject.toml"), *root.glob("plugins/*/*/pyproject.toml")]
    ):
        yield path, tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})


def runtime_imports(tree: ast.AST) -> Iterator[tuple[int, str, str | None]]:
    """Each import that runs, late ones too: line, module, and the name taken from it or None.

    Imports below `if TYPE_CHECKING:` never run and are left out.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from runtime_imports(other)
        else:
            yield from _of(node)
            yield from runtime_imports(node)


def all_imports(tree: ast.AST) -> Iterator[tuple[int, str, str | None]]:
    """Each import, those for the type checker too."""
    for node in ast.walk(tree):
        yield from _of(node)


def _of(node: ast.AST) -> Iterator[tuple[int, str, str | None]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
        match node.args:
            case [ast.Constant(value=str(name)), *_]:
                yield node.lineno, name, None
