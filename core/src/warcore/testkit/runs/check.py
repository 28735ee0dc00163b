"""Check: one rule of the contract, as a function that runs a plugin."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warcore.records import Kind
    from warcore.testkit.subject import Subject

    Function = Callable[[Subject], None]

Level = Literal["MUST", "SHOULD"]
_ALL: dict[str, Check] = {}


@attrs.frozen
class Check:
    """A rule, its level, and the function that holds a plugin to it."""

    name: str
    """As people type it: `backend.no_late_access`."""
    kind: Kind | None
    """The kind of plugin that it is about; None: every kind."""
    since: str
    """The contract's minor that brought it: newer ones than a plugin's are shown, not counted."""
    level: Level
    needs: tuple[str, ...]
    """Checks that must have passed: without them this one would say nothing.

    Those that cannot be held on the device of a run are not waited for there.
    """
    rule: str
    incident: str
    mend: str
    run: Function
    """Returns if the rule is kept; raises Refuted, NotApplicable or Unproven."""
    after: tuple[str, ...] = ()
    """Checks that come first, and whose failure would show here too: then this one is blocked."""
    devices: tuple[str, ...] = ("host", "cuda")
    """The devices that it can be held on; elsewhere it does not apply."""
    loads: bool = True
    """Whether the plugin's class is loaded for it; else it looks at sources and metadata alone."""

    def __str__(self) -> str:
        return self.name


def check(
    kind: Kind | None,
    *,
    since: str = "0.1",
    level: Level = "MUST",
    needs: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    devices: tuple[str, ...] = ("host", "cuda"),
    loads: bool = True,
) -> Callable[[Function], Function]:
    """Register a function as a check.

    needs: checks without which it says nothing. after: checks that may not apply to a plugin, but
    whose failure it would only repeat. devices: where it can be held. loads: whether it looks at
    the class; a check that does not can be held to a plugin that cannot be loaded.

    Its docstring is three paragraphs: the rule, what happened where it was broken, how to mend it.
    """

    def registered(function: Function) -> Function:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        rule, incident, mend = (" ".join(paragraph.split()) for paragraph in paragraphs)
        name = f"{kind or 'plugin'}.{function.__name__}"
        if name in _ALL:
            raise ValueError(f"there are two checks called {name}")
        _ALL[name] = Check(
            name, kind, since, level, needs, rule, incident, mend, function, after, devices, loads
        )
        return function

    return registered


LOADS: Final = "plugin.loads"
"""The check on which all stand that load the plugin, whether they say so or not."""


def loads_check() -> Check:
    """That check."""
    from warcore.testkit.rules import load_rules

    load_rules()
    return _ALL[LOADS]


def checks_of(kind: Kind) -> Iterator[Check]:
    """Every check for a plugin of `kind`, those that others need first."""
    from warcore.testkit.rules import load_rules

    load_rules()
    mine = {name: each for name, each in _ALL.items() if each.kind in {None, kind}}
    done: set[str] = set()

    def visit(name: str) -> Iterator[Check]:
        if name not in done:
            done.add(name)
            for need in (*mine[name].needs, *mine[name].after):
                yield from visit(need)
            yield mine[name]

    for name in mine:
        yield from visit(name)
