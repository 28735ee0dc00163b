"""The table of contents `warcore/__init__.py`, and the docstrings of what it lists."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from tree_rules.sources import all_imports, runtime_imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_Documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Contents(NamedTuple):
    """What `warcore/__init__.py` lists: names, the module of each, and the type checker's view."""

    names: tuple[str, ...]
    home: dict[str, str]
    typed: dict[str, str]


def contents(root: Path) -> Contents:
    """The table of contents, read without importing it."""
    tree = ast.parse((root / "core/src/warcore/__init__.py").read_text(encoding="utf-8"))
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    running = set(runtime_imports(tree))
    typed = [found for found in all_imports(tree) if found not in running]
    return Contents(
        names=tuple(ast.literal_eval(values["__all__"])),
        home=ast.literal_eval(values["_HOME"]),
        typed={str(n): m.removeprefix("warcore.") for _, m, n in typed if m.startswith("warcore.")},
    )


def table_of_contents_agrees(root: Path) -> Iterator[str]:
    """Each public name stands in `__all__`, in `_HOME` and below TYPE_CHECKING, with one module."""
    table = contents(root)
    where = "core/src/warcore/__init__.py:1:"
    names = {name for name in table.names if not name.startswith("__")}
    for name in sorted(names ^ set(table.home)):
        yield f"{where} {name} stands in only one of __all__ and _HOME"
    for name in sorted(names & set(table.home)):
        if table.typed.get(name) != table.home[name]:
            yield f"{where} {name} comes from {table.home[name]}; import it so below TYPE_CHECKING"


def public_names_are_documented(root: Path) -> Iterator[str]:
    """Each public class and function, and each public method of such a class, has a docstring."""
    for name, module in sorted(contents(root).home.items()):
        path = root / "core/src/warcore" / f"{module.replace('.', '/')}.py"
        if not path.exists():
            path = path.with_suffix("") / "__init__.py"
        node = _definition(path, name)
        if node is None:
            yield f"core/src/warcore/__init__.py:1: {name} is not defined in warcore.{module}"
            continue
        for owner, line in _undocumented(node):
            yield f"{path.relative_to(root)}:{line}: {owner} is public and has no docstring"


def _definition(path: Path, name: str) -> ast.stmt | None:
    if not path.exists():
        return None
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next((n for n in body if isinstance(n, _Documented) and n.name == name), None)


def _undocumented(node: ast.stmt) -> Iterator[tuple[str, int]]:
    if not isinstance(node, _Documented):
        return
    if ast.get_docstring(node) is None:
        yield node.name, node.lineno
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, _Documented) and not member.name.startswith("_"):
                for owner, line in _undocumented(member):
                    yield f"{node.name}.{owner}", line
