"""The rules of the tree that no type checker and no linter knows, one function per rule.

A rule takes the root of a workspace and yields one line per violation: where, what, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tree_rules import floors, imports, names, public, remedies, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RULES: Final[dict[str, Callable[[Path], Iterator[str]]]] = {
    "names": names.core_names_no_plugin,
    "plugin-imports": imports.plugins_import_public_names,
    "core-imports": imports.core_imports_its_dependencies,
    "torch-free": imports.torch_free,
    "floors": floors.lower_floors_know_nothing_of_higher_ones,
    "contents": public.table_of_contents_agrees,
    "docstrings": public.public_names_are_documented,
    "remedies": remedies.plugin_errors_name_a_remedy,
    "leftovers": texts.no_leftovers,
    "sleep": texts.no_sleep_in_tests,
    "paths": texts.no_path_of_a_machine,
    "hosts": texts.no_registry_host,
    "size": texts.no_large_file,
}
"""What `scripts/check_tree.py` runs, by the name that `--only` takes."""
