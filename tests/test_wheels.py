"""What a person installs: wheels, in an environment that has never seen this checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from tree_rules.sources import distributions

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {path.parent: project for path, project in distributions(ROOT)}
KINDS = {
    "warcore.backends": "backend",
    "warcore.graph_runners": "graph_runner",
    "warcore.spec_algos": "spec_algo",
    "warcore.stagers": "stager",
    "warcore.models": "model",
}


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of each distribution, built without a network."""
    folder = tmp_path_factory.mktemp("wheels")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *offline, "-w", folder, *SOURCES)
    built = {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert set(built) == {project["name"] for project in SOURCES.values()}
    return built


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory) -> Path:
    """An environment with the wheels; third-party packages are lent by this one, at the end."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", *wheels.values())
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # NOTE: a .pth adds a folder and does not read the .pth files in it, so that the editable
    # installs of this environment stay out of the other.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder


def test_the_wheels_show_every_plugin_and_nothing_needs_attention(installed):
    listing = json.loads(run(installed / "bin/warcore", "list-plugins", "--json", "--strict"))
    shown = {(row["kind"], row["name"]) for row in listing["plugins"]}
    declared = {
        (KINDS[group], name)
        for project in SOURCES.values()
        for group, names in project.get("entry-points", {}).items()
        for name in names
    }
    assert shown == declared


def test_the_plugins_are_the_installed_ones_and_not_the_checkout(installed):
    code = "import warcore, sys; sys.exit(not warcore.__file__.startswith(sys.prefix))"
    run(installed / "bin/python", "-c", code)


def test_a_wheel_says_that_its_types_count(wheels):
    assert "warcore/py.typed" in zipfile.ZipFile(wheels["warcore"]).namelist()


def test_a_wheel_holds_the_page_of_a_timeline(wheels):
    names = set(zipfile.ZipFile(wheels["warcore"]).namelist())
    for path in (ROOT / "core/src/warcore/tracing/web").iterdir():
        assert f"warcore/tracing/web/{path.name}" in names


def test_a_wheel_holds_the_templates_of_new_packages(wheels):
    names = set(zipfile.ZipFile(wheels["warcore"]).namelist())
    source = ROOT / "core/src"
    for path in (source / "warcore/templates").rglob("*.template"):
        assert path.relative_to(source).as_posix() in names


@pytest.mark.parametrize("name", [project["name"] for project in SOURCES.values()])
def test_a_wheel_carries_its_licence(name, wheels):
    wheel = zipfile.ZipFile(wheels[name])
    [entry] = [entry for entry in wheel.namelist() if entry.endswith(".dist-info/licenses/LICENSE")]
    assert wheel.read(entry) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", [project["name"] for project in SOURCES.values()])
def test_a_wheel_holds_no_tests_and_no_stray_files(name, wheels):
    names = zipfile.ZipFile(wheels[name]).namelist()
    # Templates are data: the tests among them are those of packages to come.
    names = [entry for entry in names if not entry.startswith("warcore/templates/")]
    roots = {entry.split("/")[0] for entry in names}
    assert len([root for root in roots if not root.endswith(".dist-info")]) == 1
    parts = {part for entry in names for part in entry.split("/")}
    assert not [part for part in parts if part == "tests" or part.startswith("test_")]


def test_the_root_is_no_distribution_and_says_so(tmp_path):
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--target", tmp_path, ROOT]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "this folder is a workspace, not a distribution. Next: make demo" in done.stderr
