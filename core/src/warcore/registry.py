"""Find the installed plugins without importing them, and choose among them.

A plugin that cannot be used is a record with a cause and a remedy, never an exception in somebody
else's listing. Only a plugin that was chosen and cannot be used is an error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from warcore.description import describe
from warcore.errors import PluginError
from warcore.installed import installed
from warcore.records import (
    KINDS,
    Kind,
    LoadError,
    PluginRecord,
    State,
    flawed,
    load,
    nearest,
    suggestion,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "KINDS",
    "Kind",
    "LoadError",
    "PluginRecord",
    "State",
    "candidates",
    "find_plugins",
    "load",
    "named",
    "select",
]

ALLOWLIST: Final = "WARCORE_PLUGINS"


def find_plugins(disable: Iterable[str] = (), kind: str | None = None) -> tuple[PluginRecord, ...]:
    """Every installed plugin, or those of one kind; imports none of them, and no torch.

    disable: names (NAME or KIND:NAME) to switch off. The environment variable WARCORE_PLUGINS, if
    not empty, is a comma-separated list of the only names that stay on. PluginError for a name in
    either that no plugin has. Sorted by kind, then name, then distribution.
    """
    if kind is not None and kind not in KINDS:
        raise PluginError(f"there is no kind of plugin {kind!r}", next=f"use {', '.join(KINDS)}")
    records = [r for dist in installed() for r in describe(dist)]
    records = list(_conflicts(_switch_off(records, tuple(disable))))
    records.sort(key=lambda r: (KINDS.index(r.kind), r.name, r.distribution or ""))
    return tuple(r for r in records if kind in {None, r.kind})


def candidates(records: Iterable[PluginRecord], kind: Kind) -> tuple[PluginRecord, ...]:
    """Those of `kind` that can be chosen."""
    return tuple(r for r in records if r.kind == kind and r.state in {"available", "loaded"})


def select(records: Iterable[PluginRecord], kind: Kind, name: str) -> PluginRecord:
    """The plugin that a person named (NAME or KIND:NAME), if it can be used.

    PluginError with a suggestion if there is none, or with its cause and remedy if it cannot be.
    """
    records = tuple(records)
    prefix, _, rest = name.rpartition(":")
    wanted = rest if prefix == kind else name
    found = [r for r in records if r.kind == kind and r.name == wanted]
    listing = f"warcore list-plugins --kind {kind}"
    if not found:
        elsewhere = [r for r in records if name in {r.name, f"{r.kind}:{r.name}"}]
        hint = f"; {elsewhere[0]} has this name" if elsewhere else ""
        hint = hint or suggestion(wanted, (r.name for r in records if r.kind == kind))
        raise PluginError(f"no {kind} is called {wanted!r}{hint}", next=listing)
    for record in found:
        if record.state not in {"available", "loaded"}:
            cause = f" ({record.cause})" if record.cause else ""
            if record.state == "conflict":
                either = " or ".join(f"pip uninstall {r.distribution}" for r in found)
                raise PluginError(f"{record} is in conflict{cause}", next=f"keep one: {either}")
            raise PluginError(f"{record} is {record.state}{cause}", next=record.next or listing)
    return found[0]


def named(
    records: Sequence[PluginRecord], name: str, command: str | None = None
) -> tuple[PluginRecord, ...]:
    """All that `name` (NAME or KIND:NAME) means; PluginError with a suggestion if none.

    command: what stood before the name, to be typed again with the suggestion.
    """
    found = tuple(r for r in records if name in {r.name, f"{r.kind}:{r.name}"})
    if not found:
        known = [n for r in records for n in (r.name, f"{r.kind}:{r.name}")]
        near = nearest(name, known)
        again = "warcore list-plugins" if None in {command, near} else f"{command} {near}"
        raise PluginError(f"no plugin is called {name!r}{suggestion(name, known)}", next=again)
    return found


def _switch_off(records: Sequence[PluginRecord], disable: tuple[str, ...]) -> list[PluginRecord]:
    """The records, those disabled that `disable` names or the allowlist does not."""
    off = [r for name in disable for r in named(records, name)]
    variable = os.environ.get(ALLOWLIST, "")
    allowed = [name.strip() for name in variable.split(",") if name.strip()]
    try:
        on = [r for name in allowed for r in named(records, name)]
    except PluginError as error:
        remedy = f"env -u {ALLOWLIST} warcore list-plugins"
        raise PluginError(f"{ALLOWLIST}: {error.what}", next=remedy) from None
    kept = []
    for record in records:
        if record in off:
            cause, remedy = "--disable names it", f"leave out --disable {record.name}"
        elif allowed and record not in on:
            cause = f"{ALLOWLIST} does not name it"
            remedy = f"export {ALLOWLIST}={variable},{record.kind}:{record.name}"
        else:
            kept.append(record)
            continue
        kept.append(flawed(record, "disabled", cause, remedy))
    return kept


def _conflicts(records: Sequence[PluginRecord]) -> Iterator[PluginRecord]:
    """The records, those marked whose kind and name another distribution uses too."""
    owners: dict[tuple[str, str], list[PluginRecord]] = {}
    for record in records:
        if record.state != "disabled":
            owners.setdefault((record.kind, record.name), []).append(record)
    for record in records:
        twins = owners.get((record.kind, record.name), [])
        other = next((r for r in twins if r.distribution != record.distribution), None)
        if record.state == "disabled" or other is None:
            yield record
        else:
            cause = f"{other.origin} has a {record.kind} of this name too"
            yield flawed(record, "conflict", cause, f"pip uninstall {other.distribution}")
