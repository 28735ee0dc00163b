"""Fake distributions, warcore run against nothing but them, and one core for all toys."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import importlib_metadata  # noqa: F401 - find_plugins imports it late, when only the site is on the path
import packaging.requirements  # noqa: F401 - likewise
import pytest

from warcore.registry import find_plugins

BACKEND = """
from warcore import AttentionBackend
class Backend(AttentionBackend):
    def forward(self, q, k, v, layer, batch): ...
"""
NEEDED = "warcore attr attrs click rich pygments packaging pluggy importlib_metadata zipp tomli"


class Site:
    """What `pip install` would leave behind, written by hand."""

    def __init__(self, path: Path, dependencies: Path):
        self.path = path
        self.dependencies = dependencies
        path.mkdir(exist_ok=True)

    def add(
        self,
        name,
        entries=None,
        *,
        version="1.0",
        requires=("warcore>=0.1,<0.2",),
        editable=None,
        place=None,
        **modules,
    ) -> Path:
        """Install `name`: entries {kind: {name: value}} and modules by name. Its dist-info."""
        place = place or self.path
        info = place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        fields = [
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *fields, "", "text"]))
        if entries is not None:
            (info / "entry_points.txt").write_text(entry_points(entries))
        if editable is not None:
            url = {"url": editable.as_uri(), "dir_info": {"editable": True}}
            (info / "direct_url.json").write_text(json.dumps(url))
        for module, source in modules.items():
            (place / f"{module}.py").write_text(source)
        return info

    def backend(self, name="good", **kw) -> Path:
        """Install the distribution `x-NAME` with one healthy backend, NAME, in module x_NAME."""
        entries = {"backend": {name: f"x_{name}:Backend"}}
        return self.add(f"x-{name}", entries, **{f"x_{name}": BACKEND}, **kw)

    def find(self, *disable, kind=None, before=()):
        """find_plugins with nothing on the path but `before` and the site."""
        importlib.invalidate_caches()
        with mock.patch.object(sys, "path", [*map(str, before), str(self.path)]):
            return find_plugins(disable, kind)

    def one(self, **kw):
        (record,) = self.find(**kw)
        return record

    def command(self, *args):
        return [sys.executable, "-S", "-m", "warcore", *args]

    def environment(self, **more):
        path = os.pathsep.join([str(self.dependencies), str(self.path)])
        return {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONWARNINGS": "error", **more}

    def warcore(self, *args, **env) -> subprocess.CompletedProcess[str]:
        """`warcore ARGS` in a process that sees the site and warcore's own dependencies."""
        return subprocess.run(
            self.command(*args),
            env=self.environment(**env),
            cwd=self.path,
            text=True,
            capture_output=True,
            check=False,
            timeout=120,
        )


def entry_points(entries) -> str:
    lines = []
    for kind, named in entries.items():
        group = kind if "." in kind else f"warcore.{kind}s"
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in named.items())]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory) -> Path:
    """A directory with warcore's own dependencies and no metadata of any distribution."""
    place = tmp_path_factory.mktemp("dependencies")
    for name in NEEDED.split():
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            origin = origin.parent if origin.name == "__init__.py" else origin
            (place / origin.name).symlink_to(origin)
    return place


@pytest.fixture
def site(tmp_path, dependencies) -> Site:
    return Site(tmp_path / "site", dependencies)


@pytest.fixture(scope="module", autouse=True)
def _one_core():
    """Toys are too small to share among cores, which others may be using."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
