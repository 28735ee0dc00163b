"""Which checks a plugin is held to: those of its kind, of its contract, that somebody asked for."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs

from warcore import __version__
from warcore.errors import ConfigError
from warcore.records import nearest, suggestion
from warcore.testkit.runs.check import checks_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warcore.records import Kind, PluginRecord
    from warcore.testkit.runs.check import Check


@attrs.frozen
class Selection:
    """The checks of one run."""

    checks: tuple[Check, ...]
    """Those that were asked for and those that they need, in the order in which they run."""
    available: int
    """How many checks there are for this kind."""
    pattern: str = ""
    asked: frozenset[str] = frozenset()
    """Names of those that were asked for themselves."""

    @classmethod
    def of(cls, kind: Kind, pattern: str = "") -> Selection:
        """The checks whose name is `pattern`, or fits it with wildcards, or holds it.

        ConfigError if there are none of this kind, or none fits.
        """
        # Whether it can be loaded comes before all that is peculiar to its kind.
        every = tuple(sorted(checks_of(kind), key=lambda check: check.kind is not None))
        if not any(check.kind == kind for check in every):
            raise ConfigError(f"there are no checks of a {kind} in this version of warcore yet")
        names = [check.name for check in every]
        wanted = {name for name in names if not pattern or _fits(name, pattern, names)}
        if not wanted:
            short = [name.partition(".")[2] for name in names]
            near = suggestion(pattern, [*names, *short])
            raise ConfigError(
                f"no check of a {kind} is called {pattern!r}{near}",
                next=f"-k {'|'.join(short)}",
            )
        by_name, asked = {check.name: check for check in every}, frozenset(wanted)
        # Those that others need come first, so one way back finds them all.
        for check in reversed(every):
            if check.name in wanted:
                before = (*check.needs, *check.after)
                wanted.update(name for name in before if name in by_name)
        return cls(tuple(c for c in every if c.name in wanted), len(every), pattern, asked)


def _fits(name: str, pattern: str, names: Iterable[str]) -> bool:
    if pattern in names:
        return name == pattern
    if any(letter in pattern for letter in "*?["):
        return fnmatchcase(name, pattern) or fnmatchcase(name.partition(".")[2], pattern)
    return pattern.lower() in name


def find_check(name: str) -> Check:
    """The check of this name, of whatever kind; ConfigError with a suggestion if there is none."""
    from warcore.records import KINDS

    known = {check.name: check for kind in KINDS for check in checks_of(kind)}
    if name not in known:
        short: dict[str, list[str]] = {}
        for full in known:
            short.setdefault(full.partition(".")[2], []).append(full)
        near = nearest(name, [*known, *short])
        meant = [] if near is None else short.get(near, [near])
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        again = f"warcore check --explain {meant[0]}" if meant else "warcore check --explain"
        raise ConfigError(f"no check is called {name!r}{hint}", next=again)
    return known[name]


def contract_of(record: PluginRecord) -> str:
    """The minor of warcore to which a plugin is written: the lower bound of its requirement.

    Without one it is this version's.
    """
    here = _minor(__version__)
    if record.requires is None:
        return here
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        clauses = Requirement(record.requires).specifier
    except InvalidRequirement:
        return here
    lower = [c.version for c in clauses if c.operator in {">=", "~=", "==", ">"}]
    return max((_minor(v) for v in lower), key=_number, default=here)


def is_newer(check: Check, contract: str) -> bool:
    """Whether a check came after a contract; then it is shown, and not counted."""
    return _number(check.since) > _number(contract)


def wrong_entries(
    known_failures: Mapping[str, str], checks: Iterable[Check]
) -> dict[str, ConfigError]:
    """What is wrong with entries of `known_failures` that no run can make right, by their ids.

    ConfigError if it is no mapping at all.
    """
    if not isinstance(known_failures, Mapping):
        raise ConfigError(
            f"known_failures is {known_failures!r}, not the reason for each check",
            next='known_failures={"KIND.CHECK": "why it fails"}',
        )
    by_name = {check.name: check for check in checks}
    wrong = {}
    for name, reason in known_failures.items():
        if name not in by_name:
            what = f"there is no check {name!r}{suggestion(str(name), by_name)}"
            remedy = f"{nearest(str(name), by_name)!r}, or strike the entry out"
            if nearest(str(name), by_name) is None:
                remedy = "strike the entry out; warcore check --explain lists the checks"
        elif by_name[name].level == "MUST":
            what = f"{name} is a MUST: no plugin may fail it, known or not"
            remedy = f"mend what it finds: warcore check --explain {name}"
        elif not isinstance(reason, str) or not reason.strip():
            what = f"{name} is a known failure without a reason"
            remedy = f'{{"{name}": "why it fails"}}'
        else:
            continue
        wrong[name] = ConfigError(f"known_failures: {what}", next=remedy)
    return wrong


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))


def _minor(version: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        major, minor, *_ = (*Version(version.removesuffix(".*")).release, 0)
    except InvalidVersion:
        major, minor, *_ = (*Version(__version__).release, 0)
    return f"{major}.{minor}"
