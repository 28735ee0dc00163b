"""Every typed error of a plugin says what to do about it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tree_rules.sources import all_imports, modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def plugin_errors_name_a_remedy(root: Path) -> Iterator[str]:
    """Each call of an error class that a plugin takes from warcore has a `next` that is not None.

    A function that makes such errors for one cause gives it once, for all who call the function.
    """
    for path, tree in modules(root, "plugins/*/*/src"):
        errors = {
            name
            for _, module, name in all_imports(tree)
            if module == "warcore" and name is not None and name.endswith("Error")
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or _has_remedy(node):
                continue
            name = ast.unparse(node.func)
            if name in errors or (name.startswith("warcore.") and name.endswith("Error")):
                yield (
                    f"{path.relative_to(root)}:{node.lineno}: {name} without next=; "
                    "say what to type or to change"
                )


def _has_remedy(call: ast.Call) -> bool:
    return any(
        given.arg == "next"
        and not (isinstance(given.value, ast.Constant) and not given.value.value)
        for given in call.keywords
    )
