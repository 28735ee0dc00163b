"""Who may import what: plugins the public names, the core its dependencies, a listing no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tree_rules.public import contents
from tree_rules.sources import all_imports, distributions, modules, runtime_imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHOSEN_BY_PEOPLE: Final = frozenset({"torch"})
"""Imported by the core although only its extra requires it: people choose their build first."""

TORCH_FREE: Final = {
    "import warcore": "import warcore",
    "the modules of the listing": (
        "import warcore.contract, warcore.errors, warcore.hookspecs, warcore.options, "
        "warcore.registry"
    ),
    "warcore list-plugins": "from warcore.cli import main; sys.exit(main(['list-plugins']))",
    "warcore --help": "from warcore.cli import main; sys.exit(main(['--help']))",
}
"""What must work on a machine without torch, and the code that does it."""


def plugins_import_public_names(root: Path) -> Iterator[str]:
    """A plugin takes from warcore what `warcore.__all__` and `warcore.testkit` hold, no more."""
    public = set(contents(root).names)
    for path, tree in modules(root, "plugins/*/*/src"):
        for line, module, name in all_imports(tree):
            if module.split(".")[0] != "warcore" or _public(module, name, public):
                continue
            taken = module if name is None else f"{name} from {module}"
            yield (
                f"{path.relative_to(root)}:{line}: a plugin imports {taken}; "
                "only names of warcore.__all__ and warcore.testkit are public"
            )


def _public(module: str, name: str | None, public: set[str]) -> bool:
    if module == "warcore":
        return name is None or name == "testkit" or name in public
    return module == "warcore.testkit"


def core_imports_its_dependencies(root: Path) -> Iterator[str]:
    """core/src imports the standard library, itself, torch, and what its pyproject requires."""
    projects = dict(distributions(root))
    required = projects[root / "core/pyproject.toml"].get("dependencies", [])
    allowed = {re.split(r"[^\w-]", text)[0].replace("-", "_").lower() for text in required}
    allowed |= {"warcore"} | CHOSEN_BY_PEOPLE | sys.stdlib_module_names
    for path, tree in modules(root, "core/src"):
        for line, module, _ in runtime_imports(tree):
            if module.split(".")[0] not in allowed:
                yield (
                    f"{path.relative_to(root)}:{line}: the core imports {module}, "
                    "which core/pyproject.toml does not require"
                )


def torch_free(root: Path) -> Iterator[str]:
    """Nothing that only looks around may load torch: it costs seconds, and gigabytes to install."""
    environment = {**os.environ, "PYTHONPATH": str(root / "core/src")}
    for what, code in TORCH_FREE.items():
        done = subprocess.run(
            [sys.executable, "-c", _WATCHED.format(code=code)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == _LOADED_TORCH:
            yield f"core/src/warcore: {what} loads torch"
        elif done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            yield f"core/src/warcore: {what} fails: {last}"


_LOADED_TORCH: Final = 86
_WATCHED: Final = f"""
import sys
try:
    {{code}}
except SystemExit as end:
    if end.code:
        raise
if "torch" in sys.modules:
    sys.exit({_LOADED_TORCH})
"""
