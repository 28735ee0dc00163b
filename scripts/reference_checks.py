"""The table of checks, as a page: from the functions that the kit runs and their docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from warcore.testkit.runs.check import Check

ABOUT: Final = {
    None: "Every plugin",
    "backend": "Backends",
    "graph_runner": "Graph runners",
    "spec_algo": "Speculative algorithms",
    "stager": "Stagers",
    "model": "Model families",
}
"""The heading of each kind's checks, in the order of the page."""

_INTRODUCTION: Final = """\
What `warcore check` holds a plugin to: those of its kind, and those of every plugin. A plugin that
fails a MUST is not conformant; one that fails a SHOULD is told so. A check that is newer than the
contract a plugin is written to is shown, and not counted. A check is not run where one that it
needs has not passed, nor where one that it comes after has failed: it would only repeat that.
`warcore check --explain CHECK` prints the same words.

[Hazards](../hazards.md) shows what the checks are for, and [the score](../score.md) which wrong
plugins each of them finds."""


def checks() -> Iterator[str]:
    """Every check of the kit: for each kind a table, and below it the words of each."""
    yield "# The checks\n"
    yield f"{_INTRODUCTION}\n"
    every = _every()
    for kind, heading in ABOUT.items():
        mine = [check for check in every if check.kind == kind]
        if mine:
            yield f"## {heading}\n"
            yield from _table(mine)
            for check in mine:
                yield from _words(check)


def anchor(name: str) -> str:
    """Where a check stands on the page."""
    return name.replace(".", "")


def _every() -> list[Check]:
    """Each check once, by name: the order in which rules were imported must not show."""
    from warcore.records import KINDS
    from warcore.testkit.runs.check import checks_of

    found = {check.name: check for kind in KINDS for check in checks_of(kind)}
    return [found[name] for name in sorted(found)]


def _table(checks: Iterable[Check]) -> Iterator[str]:
    yield "| check | level | since | needs | comes after |\n|---|---|---|---|---|"
    for check in checks:
        needs, after = (", ".join(map(_link, names)) for names in (check.needs, check.after))
        yield f"| {_link(check.name)} | {check.level} | {check.since} | {needs} | {after} |"
    yield ""


def _link(name: str) -> str:
    return f"[`{name}`](#{anchor(name)})"


def _words(check: Check) -> Iterator[str]:
    yield f"### {check.name}\n"
    yield f"{check.rule}\n"
    if len(check.devices) == 1:
        yield f"Held on the device `{check.devices[0]}` only.\n"
    yield f"*Where it was broken.* {check.incident}\n"
    yield f"*To mend it.* {check.mend}\n"
