"""What the checks are about, for people who run none: a list, or one in all its words."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from warcore.cli.output import aligned, console
from warcore.errors import ConfigError
from warcore.records import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warcore.records import Kind
    from warcore.testkit.runs.check import Check

_WIDTH = 100
"""Sentences are folded here, or where the terminal ends."""


def explain_check(name: str) -> None:
    """Print the facts of a check, its rule, the incident behind it and how to mend it.

    ConfigError with the name that was meant, if there is none.
    """
    from warcore.testkit.runs.selection import find_check

    check = find_check(name)
    screen = console()
    width = min(screen.width, _WIDTH)
    screen.print(check.name, style="bold", soft_wrap=True)
    for line in aligned(_facts(check)):
        screen.print(f"    {line}", soft_wrap=True)
    for paragraph in (check.rule, check.incident, check.mend):
        screen.print(f"\n{fill(paragraph, width, break_on_hyphens=False)}", soft_wrap=True)


def _facts(check: Check) -> list[tuple[str, str]]:
    rows = [
        ("level", check.level),
        ("since", check.since),
        ("about", check.kind or "every kind of plugin"),
        ("needs", ", ".join(check.needs)),
        ("comes after", ", ".join(check.after)),
        ("held on", " and ".join(check.devices)),
    ]
    return [(heading, text) for heading, text in rows if text]


def list_checks(plugin: str | None, pattern: str) -> None:
    """Print the names of the checks of one plugin's kind, or of all, each with its rule's line.

    pattern: as of `-k`, without those that they need. ConfigError or PluginError as for a run.
    """
    screen = console()
    listed = list(_listed(_kinds(plugin), pattern))
    rows = [(check.name, check.level, _line(check.rule)) for check in listed]
    for line in aligned([("CHECK", "LEVEL", "RULE"), *rows]):
        screen.print(line, soft_wrap=True)


def _kinds(plugin: str | None) -> Iterable[Kind]:
    from warcore.cli.subject import subject_of

    return KINDS if plugin is None else [subject_of(plugin, {}).record.kind]


def _listed(kinds: Iterable[Kind], pattern: str) -> Iterable[Check]:
    """Each once, those of every kind of plugin first."""
    from warcore.testkit.runs.selection import Selection

    found: dict[str, Check] = {}
    refused: list[ConfigError] = []
    for kind in kinds:
        try:
            selection = Selection.of(kind, pattern)
        except ConfigError as error:
            refused.append(error)
            continue
        found |= {check.name: check for check in selection.checks if check.name in selection.asked}
    if not found:
        raise refused[0]
    return sorted(found.values(), key=lambda check: check.kind is not None)


def _line(rule: str) -> str:
    """The first words of a rule that stand alone."""
    for end in (": ", "; ", ". "):
        rule = rule.partition(end)[0]
    return rule.rstrip(".")
