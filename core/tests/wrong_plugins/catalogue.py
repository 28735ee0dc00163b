"""Every deliberately wrong plugin of this folder, and how to put one under check.

A module in a folder without pyproject.toml is one plugin, `Plugin`, of the kind that its folder is
called after; `BREAKS` names the check that it turns red, `DETECTORS` who must have seen it. A
folder with pyproject.toml is a package; its `[tool.warcore-kit]` says the same. A plugin that
breaks `KIND.nothing` is a right one. The catalogue is read from the text: nothing is imported.
"""

from __future__ import annotations

import ast
import json
import sys
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path

import attrs

from warcore import PluginRecord
from warcore.registry import KINDS, find_plugins, load
from warcore.testkit.subject import Subject

FOLDER = Path(__file__).parent
DETECTORS = (
    "guard",
    "happens-before",
    "poison",
    "attribution",
    "event position",
    "seeded schedules",
)
"""As failures name them in `seen_by`."""


@attrs.frozen
class Entry:
    """One plugin of the catalogue."""

    name: str
    """Where it lies, below this folder: `models/shouts`, `opens_cuda`."""
    kind: str
    breaks: str
    """The check that it turns red, or `KIND.nothing`."""
    detectors: tuple[str, ...]
    """Those that must have seen it."""
    says: str
    """What is wrong with it, in its own words."""
    is_package: bool

    def __str__(self) -> str:
        return self.name

    @property
    def is_right(self) -> bool:
        return self.breaks.endswith(".nothing")

    @property
    def path(self) -> Path:
        """The file, or the folder of a package."""
        return FOLDER / self.name if self.is_package else FOLDER / f"{self.name}.py"

    @property
    def owner(self) -> str | None:
        """The kind of the checks that it is held to; None: the checks of every plugin."""
        return None if self.breaks.startswith("plugin.") else self.kind


def entries() -> list[Entry]:
    """All of them, by name."""
    packages = [_package(path.parent) for path in FOLDER.glob("*/pyproject.toml")]
    modules = [
        found
        for path in FOLDER.glob("*/*.py")
        if not (path.parent / "pyproject.toml").exists() and (found := _module(path))
    ]
    return sorted(packages + modules, key=lambda entry: entry.name)


def _module(path: Path) -> Entry | None:
    """None for a module that the others are made of."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="BREAKS" | "DETECTORS" as name)], value=value):
                said[name] = ast.literal_eval(value)
    if "BREAKS" not in said:
        return None
    kind = next(kind for kind in KINDS if path.parent.name.startswith(f"{kind}s"))
    name = f"{path.parent.name}/{path.stem}"
    says = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    return Entry(
        name, kind, said["BREAKS"], tuple(said.get("DETECTORS", ())), " ".join(says.split()), False
    )


def _package(folder: Path) -> Entry:
    data = _toml(folder)
    (group,) = data["project"]["entry-points"]
    kit = data["tool"]["warcore-kit"]
    (source,) = folder.glob(f"wrong_{folder.name}.py")
    says = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return Entry(
        folder.name,
        group.removeprefix("warcore.").removesuffix("s"),
        kit["breaks"],
        tuple(kit.get("detectors", ())),
        " ".join(says.partition("\n\n")[0].split()),
        True,
    )


def _toml(folder: Path) -> dict:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


# ---- under check ---------------------------------------------------------------------------------


@contextmanager
def under_check(entry: Entry, site: Path, *, imported: bool = True):
    """A Subject of it, as long as the context lasts; a package is installed in the folder `site`.

    imported: whether a package's class is imported here; if not, each check does it.
    """
    if not entry.is_package:
        plugin = import_module(f"{FOLDER.name}.{entry.name.replace('/', '.')}").Plugin
        yield Subject(PluginRecord.of_class(entry.kind, plugin), plugin)
        return
    name = install(entry, site)
    before = list(sys.path)
    sys.path[:0] = [str(site), str(entry.path)]
    invalidate_caches()
    try:
        (record,) = [each for each in find_plugins() if each.name == name]
        yield Subject(record, load(record) if imported else None)
    finally:
        sys.path[:] = before


def install(entry: Entry, site: Path) -> str:
    """Leave in `site` what an editable install of a package would; the plugin's name."""
    data = _toml(entry.path)
    project = data["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    fields = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        *(f"Requires-Dist: {line}" for line in project["dependencies"]),
    ]
    if "description" in project:
        readme = (entry.path / project["readme"]).read_text(encoding="utf-8")
        fields += [f"Summary: {project['description']}", "", readme]
    (info / "METADATA").write_text("\n".join(fields), encoding="utf-8")
    ((group, points),) = project["entry-points"].items()
    ((name, value),) = points.items()
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    url = {"url": entry.path.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    return name
