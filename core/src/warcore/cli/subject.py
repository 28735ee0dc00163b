"""The plugin that a person wants checked, from words to a Subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warcore.errors import ConfigError
from warcore.registry import find_plugins, named, select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore.records import PluginRecord
    from warcore.testkit.subject import Subject


def subject_of(name: str, options: Mapping[str, str], **facts: Any) -> Subject:
    """The plugin called `name`, or `kind:name`, with these {"name.key": text} options.

    facts: what else a Subject has. ConfigError or PluginError, with what to type instead. A plugin
    is loaded here only for options: whatever else it does happens in a process of its own.
    """
    from warcore.testkit.subject import Subject

    record = _record(name)
    if facts.get("reference") is not None and record.kind != "model":
        raise ConfigError(f"--reference is of models, and {record} is none", next="leave it out")
    return Subject(record, None, options=_options(record, options), **facts)


def _record(name: str) -> PluginRecord:
    records = find_plugins()
    kinds = dict.fromkeys(record.kind for record in named(records, name, "warcore check"))
    if len(kinds) > 1:
        these = " or ".join(f"{kind}:{name}" for kind in kinds)
        raise ConfigError(f"{len(kinds)} plugins are called {name!r}", next=these)
    return select(records, next(iter(kinds)), name)


def _options(record: PluginRecord, given: Mapping[str, str]) -> object:
    """The plugin's options; None: its defaults. ConfigError for one that it does not have."""
    from warcore.options import parse_options
    from warcore.records import load

    if not given:
        return None
    mine = {}
    for path, text in given.items():
        owner, _, key = path.rpartition(".")
        if owner != record.name:
            raise ConfigError(
                f"--opt {path}: only {record} is checked", next=f"--opt {record.name}.key=value"
            )
        mine[key] = text
    cls: Any = load(record)
    return parse_options(record.name, cls.Options, mine)
