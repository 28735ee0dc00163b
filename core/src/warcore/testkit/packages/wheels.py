"""A plugin's wheel: built from its sources, and installed where nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warcore.installed import canonical
from warcore.testkit.outcome import NotApplicable, Unproven
from warcore.testkit.packages.interpreter import MORE, begin, patience, scratch

if TYPE_CHECKING:
    from warcore.installed import Installed
    from warcore.records import PluginRecord

OFFLINE: Final = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
LEFT_OUT: Final = (".git", ".hg", ".venv", "venv", "__pycache__", ".*_cache", "build", "*.egg-info")


def listed_from_wheel(record: PluginRecord, dist: Installed) -> str | None:
    """What is wrong with the plugin as its wheel has it; None if nothing is.

    Nothing is fetched: build tools, warcore and third-party packages are those of the running
    environment. NotApplicable where its sources or its build tools are not here.
    """
    source = _buildable(dist)
    with scratch("wheel") as folder:
        # A build may leave files behind, and nobody has asked for any in their sources.
        copy = Path(folder, "source")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        wheels = Path(folder, "wheels")
        built = _run(sys.executable, "-m", "pip", "wheel", *OFFLINE, "-w", wheels, copy)
        if built.returncode:
            return f"it cannot be built: {_last(built)}"
        python = _environment(Path(folder, "venv"), source, wheels)
        return _listed(python, record, dist)


def _buildable(dist: Installed) -> Path:
    """The sources of an editable install whose build tools are here."""
    if dist.source is None:
        raise NotApplicable(f"{dist.name} is no editable install: its sources are not known")
    source = Path(dist.source)
    try:
        text = (source / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        raise NotApplicable(f"{source} has no pyproject.toml") from None
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    system = toml.loads(text).get("build-system", {})
    for line in system.get("requires", ["setuptools"]):
        _need(line)
    if find_spec("pip") is None:
        raise NotApplicable("pip, which builds wheels, is not installed")
    return source


def _need(line: str) -> None:
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return
    try:
        version(requirement.name)
    except PackageNotFoundError:
        raise NotApplicable(f"its build needs {line}, which is not installed") from None


def _environment(folder: Path, source: Path, wheels: Path) -> Path:
    """The interpreter of a new environment with the wheel; the rest is lent by this one."""
    made = _run(sys.executable, "-m", "venv", "--without-pip", folder)
    if made.returncode:
        raise Unproven(f"no environment could be made: {_last(made)}")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    target = ("--target", site)
    pip = (sys.executable, "-m", "pip", "install", *OFFLINE, *target, *wheels.glob("*.whl"))
    done = _run(*pip)
    if done.returncode:
        raise Unproven(f"pip could not install the wheel: {_last(done)}")
    # NOTE: a .pth adds folders and does not read the .pth files in them, so that the editable
    # install of the plugin stays out; its sources must stay out too.
    lent = [place for place in map(Path, sys.path) if place.is_dir() and _apart(place, source)]
    (site / "lent.pth").write_text("".join(f"{place}\n" for place in lent), encoding="utf-8")
    return python


def _apart(place: Path, source: Path) -> bool:
    """Whether `place` is a folder of packages elsewhere: the standard library is there already."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return (
        not place.is_relative_to(source)
        and not str(place).startswith(tuple(f"{path}/lib-dynload" for path in standard))
        and str(place) not in standard
    )


def _listed(python: Path, record: PluginRecord, dist: Installed) -> str | None:
    """What `list-plugins --strict` finds wrong there."""
    name = f"{record.kind}:{record.name}"
    command = (python, "-I", "-m", "warcore", "list-plugins", "--strict", "--load", "--json")
    done = _run(*command, "--only", name, cwd=python.parent, WARCORE_PLUGINS=name)
    try:
        rows = json.loads(done.stdout)["plugins"]
    except (ValueError, KeyError):
        return f"it is not found: {_last(done)}"
    mine = [row for row in rows if canonical(row["distribution"]) == canonical(dist.name)]
    if not mine:
        return f"{dist.name} is not listed"
    if done.returncode:
        return f"it is {mine[0]['state']}: {mine[0].get('cause')}"
    return None


def _run(
    *command: object, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - our interpreter, pip, and paths of our own
            list(map(str, command)),
            env={**begin(), **variables},
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=patience(),
        )
    except subprocess.TimeoutExpired:
        raise Unproven(f"{command[2]} {command[3]} did not end in time{MORE}") from None


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else f"exit code {done.returncode}"
