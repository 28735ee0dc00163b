"""The last report of each plugin, kept for whoever lists the plugins. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from warcore import __version__

if TYPE_CHECKING:
    from warcore.records import PluginRecord
    from warcore.testkit.runs.results import Results

NOT_CONFORMANT: Final = "not conformant"
"""The verdict of a run that has refuted a plugin."""
_SCHEMA = 2


@attrs.frozen
class LastReport:
    """What the last whole run on one device came to."""

    device: str
    passed: int
    applicable: int
    """How many checks there were, without those that the plugin does not have to pass."""
    verdict: str

    def __str__(self) -> str:
        return f"checked {self.passed}/{self.applicable} on {self.device}"


def keep(results: Results) -> None:
    """Keep what a whole run of a plugin as it comes has found, where anything can be kept."""
    from warcore.testkit.outcome import Outcome
    from warcore.testkit.runs.report import verdict
    from warcore.testkit.runs.results import NO_VERDICT

    record, counts = results.subject.record, results.counts
    if not results.whole or results.subject.set_options or record.distribution is None:
        return
    if results.subject.reference is not None and results.code == NO_VERDICT:
        # It may have no such model: then nothing was found out about the plugin.
        return
    passed = counts[Outcome.PASSED]
    applicable = results.total - counts[Outcome.NOT_APPLICABLE]
    report = LastReport(results.subject.device, passed, applicable, verdict(results))
    path = _path(record, report.device)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # A cache: a home that cannot be written or is full is no reason to fail.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps({**_stamp(record), **attrs.asdict(report)}), "utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def kept(record: PluginRecord) -> tuple[LastReport, ...]:
    """The last report of each device, if it is about what is installed now.

    One that is about another version, other sources, another warcore or another torch, or cannot be
    read, is none.
    """
    if record.distribution is None:
        return ()
    return tuple(r for d in ("host", "cuda") if (r := _read(record, d)) is not None)


def _read(record: PluginRecord, device: str) -> LastReport | None:
    path = _path(record, device)
    try:
        told = json.loads(path.read_bytes())
        stamp = _stamp(record)
        if {key: told[key] for key in stamp} != stamp:
            return None
        report = LastReport(**{f.name: told[f.name] for f in attrs.fields(LastReport)})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    counts = (report.passed, report.applicable)
    fits = report.device == device and all(type(n) is int for n in counts)
    return report if fits and isinstance(report.verdict, str) else None


def _stamp(record: PluginRecord) -> dict[str, Any]:
    """What a report is about."""
    return {
        "schema": _SCHEMA,
        "warcore": __version__,
        "kind": record.kind,
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "sources": _sources(record.file),
        "torch": _version("torch"),
    }


def _sources(file: str | None) -> list[int] | None:
    """How many files its package has, and when one changed last.

    An editable install keeps its version meanwhile; kernels in other languages lie beside Python.
    """
    if file is None:
        return None
    root = Path(file)
    while (root.parent / "__init__.py").is_file():
        root = root.parent
    files = (each for each in root.rglob("*") if each.is_file()) if root.is_dir() else [root]
    times = [f.stat().st_mtime_ns for f in files if f.parent.name != "__pycache__"]
    return [len(times), max(times, default=0)]


def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _path(record: PluginRecord, device: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if Path(cache).is_absolute() else Path("~/.cache")
    with suppress(RuntimeError):  # there is no home
        home = home.expanduser()
    # Names may be longer than a file's may be, and hold anything.
    key = "\0".join((record.kind, record.name, str(record.distribution), device))
    name = hashlib.sha256(key.encode(errors="replace")).hexdigest()[:32]
    return home / "warcore" / "checks" / f"{name}.json"
