"""The distributions on `sys.path` that concern warcore, read from their metadata files alone.

importlib-metadata gives the same facts, but opens every distribution through layers that cost
60 ms with a thousand of them, and it says nothing of editable installs. This reads one directory
listing per path entry and the files that matter, and asks importlib-metadata only for archives
and eggs.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PREFIX: Final = "warcore."
"""What the entry-point groups of plugins begin with."""

Entry = tuple[str, str, str]
"""(group, name, value) of one entry point."""


@attrs.frozen
class Installed:
    """One distribution with entry points for warcore, installed or declared in its sources."""

    name: str
    version: str | None
    """None: its METADATA is gone."""
    requires: tuple[str, ...]
    """Its `Requires-Dist` lines."""
    entries: tuple[Entry, ...]
    source: str | None = None
    """The directory of an editable install."""
    declared: tuple[Entry, ...] | None = None
    """What the pyproject.toml in `source` says now; None if it does not speak of entry points."""


def canonical(name: str) -> str:
    """The name by which a distribution is one, however it is spelled (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(path: Sequence[str] | None = None) -> Iterator[Installed]:
    """Each distribution on `path` (default `sys.path`) that has to do with warcore, once.

    As for an import, the first of a name on the path hides the others, also when it is an older
    one without entry points.
    """
    seen: set[str] = set()
    for place in sys.path if path is None else path:
        try:
            children = sorted(os.listdir(place or "."))  # noqa: PTH208 - paths cost 10 ms here
        except NotADirectoryError:
            yield from _in_archive(place, seen)
            continue
        except OSError:
            continue
        in_egg = place.lower().endswith(".egg")
        for child in children:
            stem, dot, kind = child.rpartition(".")
            if dot and kind.lower() in {"dist-info", "egg-info"}:
                key = canonical(stem.partition("-")[0])
            elif in_egg and child.lower() == "egg-info":
                key = canonical(os.path.basename(place).partition("-")[0])  # noqa: PTH119
            else:
                continue
            # A leading ~ is what pip leaves of a distribution that it could not remove.
            if key not in seen and not child.startswith("~"):
                seen.add(key)
                yield from _read(f"{place or '.'}/{child}", stem or key)


def _read(directory: str, stem: str) -> Iterator[Installed]:
    """What one dist-info or egg-info directory says, if that concerns warcore."""
    raw = _bytes(f"{directory}/entry_points.txt") or b""
    source = _editable(_bytes(f"{directory}/direct_url.json") or b"")
    entries = tuple(_entries(raw.decode(errors="replace"))) if b"warcore." in raw else ()
    declared = _declared(source) if source else None
    if not entries and not declared:
        return
    raw = _bytes(f"{directory}/METADATA") or _bytes(f"{directory}/PKG-INFO") or b""
    headers = _headers(raw.decode(errors="replace"))
    requires = tuple(headers.get("requires-dist", ()))
    if headers and directory.lower().endswith("egg-info"):
        from pathlib import Path

        from importlib_metadata import PathDistribution

        # Old eggs keep their requirements in a file of another form.
        requires = tuple(PathDistribution(Path(directory)).requires or ())
    name = next(iter(headers.get("name", ())), stem.partition("-")[0])
    version = next(iter(headers.get("version", ())), None)
    yield Installed(name, version, requires, entries, source, declared)


def _in_archive(place: str, seen: set[str]) -> Iterator[Installed]:
    from importlib_metadata import distributions

    for dist in distributions(path=[place]):
        headers = _headers(dist.read_text("METADATA") or dist.read_text("PKG-INFO") or "")
        entries = tuple(_entries(dist.read_text("entry_points.txt") or ""))
        for name in headers.get("name", ()):
            if canonical(name) not in seen:
                seen.add(canonical(name))
                if entries:
                    yield Installed(name, dist.version, tuple(dist.requires or ()), entries)


def _bytes(file: str) -> bytes | None:
    try:
        with open(file, "rb") as stream:  # noqa: PTH123
            return stream.read()
    except OSError:
        return None


def _entries(text: str) -> Iterator[Entry]:
    """The entry points of warcore's groups in an `entry_points.txt`."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and line[0] not in "#;" and group.startswith(PREFIX):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()


def _headers(text: str) -> dict[str, list[str]]:
    """The header fields of a METADATA file by lower-case name; the text below is skipped."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip().lower(), []).append(value.strip())
    return found


def _editable(raw: bytes) -> str | None:
    """The source directory that a `direct_url.json` of an editable install names (PEP 610)."""
    if b'"editable"' not in raw:
        return None
    import json
    from urllib.parse import unquote, urlsplit

    try:
        url: Any = json.loads(raw)
        if url["dir_info"]["editable"] is not True:
            return None
        return unquote(urlsplit(url["url"]).path)
    except (ValueError, KeyError, TypeError):
        return None


def _declared(source: str) -> tuple[Entry, ...] | None:
    """The entry points for warcore in a pyproject.toml; None where that file cannot tell."""
    raw = _bytes(f"{source}/pyproject.toml")
    if raw is None or b"entry-points" not in raw:
        return None
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        project = toml.loads(raw.decode()).get("project")
    except ValueError:
        return None
    if not isinstance(project, dict) or "entry-points" in project.get("dynamic", ()):
        return None
    return tuple(_flat(project.get("entry-points", {}).items()))


def _flat(groups: Iterable[tuple[str, dict[str, str]]]) -> Iterator[Entry]:
    for group, entries in groups:
        if group.startswith(PREFIX):
            for name, value in entries.items():
                yield group, name, value
