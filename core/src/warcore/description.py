"""From a distribution's metadata to a record of each of its plugins, with nothing imported."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import attrs

from warcore import __version__
from warcore.installed import PREFIX, Entry, Installed, canonical
from warcore.records import KINDS, Kind, PluginRecord, State, flawed, reinstall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

GROUPS: Final[dict[str, Kind]] = {f"{PREFIX}{kind}s": kind for kind in KINDS}
_VALUE: Final = re.compile(r"(\w+(?:\.\w+)*)\s*:\s*(\w+(?:\.\w+)*)\s*(?:\[.*\])?")


def describe(dist: Installed) -> Iterator[PluginRecord]:
    """A record of each entry point that `dist` has, or by its sources should have."""
    requires, trouble = _trouble(dist)
    now = {(group, name): value for group, name, value in dist.entries}
    soon = now if dist.declared is None else {(g, n): v for g, n, v in dist.declared}
    for group, name in sorted({*now, *soon}):
        value = now.get((group, name)) or soon[group, name]
        record = _record(dist, (group, name, value))
        if record is None:
            continue
        record = attrs.evolve(record, requires=requires)
        if trouble is not None:
            yield flawed(record, *trouble)
        elif now.get((group, name)) != soon.get((group, name)):
            yield _stale(record, dist, (group, name) in now, soon.get((group, name)))
        else:
            yield record


def _record(dist: Installed, entry: Entry) -> PluginRecord | None:
    """The record of one entry point by itself; None if its group is none of warcore's."""
    group, name, value = entry
    kind = GROUPS.get(group) or _misspelt(group)
    if kind is None:
        return None
    match = _VALUE.fullmatch(value)
    target = f"{match[1]}:{match[2]}" if match else value
    record = PluginRecord(kind, name, dist.name, dist.version, target)
    if group not in GROUPS:
        cause = f"its entry-point group is {group}; plugins of this kind go into {PREFIX}{kind}s"
        return flawed(record, "broken", cause, reinstall(record))
    if match is None:
        cause = f"its entry point is {value!r}, not MODULE:CLASS"
        return flawed(record, "broken", cause, reinstall(record))
    found, file = _locate(match[1])
    if not found:
        cause = f"there is no module {match[1].partition('.')[0]}"
        return flawed(record, "broken", cause, reinstall(record))
    return attrs.evolve(record, file=file)


def _trouble(dist: Installed) -> tuple[str | None, tuple[State, str, str] | None]:
    """The requirement of `dist` on warcore, and what keeps all of its plugins from use."""
    if dist.version is None:
        cause = "the METADATA of its distribution is missing or damaged"
        return None, ("broken", cause, f"pip install --force-reinstall --no-deps {dist.name}")
    if dist.source is not None and not os.path.isdir(dist.source):  # noqa: PTH112 - no pathlib here
        cause = f"the directory of its editable install is gone: {dist.source}"
        return None, ("broken", cause, f"pip uninstall {dist.name}")
    lines = [
        r for r in dist.requires if canonical(re.split(r"[^\w.-]", r, maxsplit=1)[0]) == "warcore"
    ]
    if not lines:
        return None, None
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            remedy = f"pip install --upgrade {dist.name}"
            return line, ("broken", f"its requirement {line!r} cannot be understood", remedy)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            cause = f"it requires warcore{requirement.specifier}, and {__version__} is installed"
            return line, ("incompatible", cause, _upgrade(dist, requirement))
    return lines[0], None


def _upgrade(dist: Installed, requirement: Requirement) -> str:
    """Upgrade whichever of the two is behind."""
    from packaging.version import InvalidVersion, Version

    for clause in requirement.specifier:
        try:
            behind = Version(clause.version.removesuffix(".*")) > Version(__version__)
        except InvalidVersion:
            continue
        if behind and clause.operator in {">=", ">", "==", "~="}:
            return f"pip install {shlex.quote(f'warcore{requirement.specifier}')}"
    return f"pip install --upgrade {dist.name}"


def _stale(
    record: PluginRecord, dist: Installed, known: bool, declared: str | None
) -> PluginRecord:
    source = dist.source or "."
    if not known:
        cause = f"{source}/pyproject.toml has it, and the editable install does not know it yet"
    elif declared is None:
        cause = f"{source}/pyproject.toml has it no more"
    else:
        cause = f"{source}/pyproject.toml says {declared}"
    remedy = f"pip install --no-deps --editable {shlex.quote(source)}"
    return flawed(record, "stale", cause, remedy)


def _misspelt(group: str) -> Kind | None:
    """The kind that a group like `warcore.backend` must have meant."""
    near = difflib.get_close_matches(group, GROUPS, 1, cutoff=0.9)
    return GROUPS[near[0]] if near else None


def _locate(module: str) -> tuple[bool, str | None]:
    """Whether the top-level package is there, and the module's file where that can be told.

    Nothing is imported. A submodule that cannot be found is left to `load`: its package may have
    a search path of its own.
    """
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return True, None
    if spec is None:
        return False, None
    name = top
    for part in rest:
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations or [])
        if spec is None:
            return True, None
    return True, spec.origin
