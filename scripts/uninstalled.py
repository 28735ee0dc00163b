"""Use the checkout where nothing can be installed: `python scripts/uninstalled.py FOLDER`.

Writes the metadata that an install would leave, one `.dist-info` per distribution, into FOLDER, and
prints the PYTHONPATH under which Python finds the sources and the registry finds the plugins.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tree_rules.sources import distributions

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("attrs", "click", "packaging", "pluggy", "pytest", "rich", "torch")
BACKPORT = "importlib_metadata"
"""Wanted for Pythons whose own module is too old; where it is not, that one serves."""
SAME = "from importlib.metadata import PathDistribution, distributions\n"


def metadata(project: dict[str, Any]) -> dict[str, str]:
    """The files of a `.dist-info` folder that the registry and pip read."""
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {needs}" for needs in project.get("dependencies", ())]
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    points = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in names.items())])
        for group, names in groups.items()
        if names
    ]
    return {"METADATA": "\n".join(lines) + "\n", "entry_points.txt": "\n".join(points) + "\n"}


def write(folder: Path) -> Iterator[Path]:
    """Write the metadata of every distribution into `folder`; the folders to search, that first."""
    yield folder
    for path, project in distributions(ROOT):
        name = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        (folder / name).mkdir(exist_ok=True)
        for file, text in metadata(project).items():
            (folder / name / file).write_text(text, encoding="utf-8")
        yield path.parent / "src"


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(target))
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        sys.exit(f"not here: {', '.join(missing)}. Next: PYTHON=PATH scripts/gpu_check.sh")
    if find_spec(BACKPORT) is None:
        (target / f"{BACKPORT}.py").write_text(SAME, encoding="utf-8")
    print(os.pathsep.join(map(str, write(target))))
