"""The checks of one class as callables, for `pytest.mark.parametrize`. Imports no pytest."""

from __future__ import annotations

import atexit
import os
import unittest
from typing import TYPE_CHECKING, Any

import attrs

from warcore.errors import ConfigError
from warcore.records import KINDS, LoadError, PluginRecord, base_of, load
from warcore.registry import find_plugins
from warcore.testkit.outcome import Outcome
from warcore.testkit.runs.isolation import Isolation
from warcore.testkit.runs.report import as_text
from warcore.testkit.runs.running import Run
from warcore.testkit.runs.selection import Selection, wrong_entries
from warcore.testkit.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warcore.testkit.runs.check import Check

_shared: dict[int, Isolation] = {}
"""The isolation of each process: a fork must not talk to its parent's."""


class ContractError(AssertionError):
    """A plugin breaks a rule of the contract, or it could not be found out whether it does."""


def checks(
    cls: type,
    known_failures: Mapping[str, str] | None = None,
    *,
    device: str = "host",
    thorough: bool = False,
    options: object = None,
) -> list[Item]:
    """Every check of the contract for a plugin's class: callables whose `str()` is their name.

        @pytest.mark.parametrize("check", warcore.testkit.checks(MyBackend), ids=str)
        def test_contract(check):
            check()

    They are the checks of `warcore check`, in its order, each in a process of its own. Each can be
    called alone and in any order: what it needs is run first, once for all of one call of `checks`.

    cls: where it is that of an installed plugin, what its distribution owes is checked too.
    known_failures: the reason for each check that it fails; only what it SHOULD do may be there. An
    entry that no check has, or a MUST, or that has no reason, is an item of its own, which fails.
    An entry is about how a check ends that was run: one that is blocked by a failure of what it
    needs, or could not run, fails with that as if the entry were not there, for nobody knows
    whether it would still fail. One whose check passes or does not apply is stale: that fails too,
    except on a device on which the check cannot be held. device: `host` or `cuda`. thorough: walk
    the whole grid. options: an instance of the class's `Options`, so that a path which its defaults
    keep for larger steps than these is walked too; None: the defaults.

    Called, a check raises AssertionError, with what to mend, if it fails, could not run, or is a
    known failure that is stale, and `unittest.SkipTest`, with the reason, if it does not apply,
    fails as its author said, or is newer than the contract that the plugin is written to.

    ConfigError for a class that is no plugin, another device, options of another class, or known
    failures that are no mapping.
    """
    known = known_failures or {}
    record = _record_of(cls)
    _refuse_unknown(record, cls, device, options)
    selection = Selection.of(record.kind)
    subject = Subject(record, cls, device=device, thorough=thorough, options=options)
    run = _Shared(subject, known, selection)
    wrong = wrong_entries(known, selection.checks)
    items = [Item(check.name, run, check) for check in selection.checks]
    items += [Item(f"known_failures[{name}]", run, None, str(e)) for name, e in wrong.items()]
    return items


@attrs.frozen(eq=False, str=False, repr=False)
class Item:
    """One check of one plugin, to be called."""

    name: str
    shared: _Shared
    check: Check | None
    wrong: str = ""
    """What is wrong with an entry of `known_failures`; such an item has no check."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<check {self.name} of {self.shared.subject.record}>"

    def __call__(self) -> None:
        """Run it; raises if it does not pass."""
        __tracebackhide__ = True
        if self.check is None:
            raise ContractError(self.wrong)
        result = self.shared.run().result(self.check, self.shared.selection)
        if not result.counted:
            raise unittest.SkipTest(f"newer than the plugin's contract: {result.outcome.value}")
        if result.outcome in {Outcome.NOT_APPLICABLE, Outcome.EXPECTED_FAILURE}:
            raise unittest.SkipTest(f"{result.outcome.value}: {result.why}")
        if result.outcome is not Outcome.PASSED:
            raise ContractError(as_text(result, self.shared.subject))


@attrs.define(eq=False)
class _Shared:
    """What the items of one class have in common: a check that another one needs is run once."""

    subject: Subject
    known: Mapping[str, str]
    selection: Selection
    _run: Run | None = None

    def run(self) -> Run:
        if self._run is None:
            self._run = Run(self.subject, self.known, _isolation())
        return self._run


def _isolation() -> Isolation:
    """That of this process, for all its items."""
    mine = _shared.get(os.getpid())
    if mine is None:
        mine = _shared[os.getpid()] = Isolation()
        atexit.register(_close, os.getpid(), mine)
    return mine


def _close(process: int, isolation: Isolation) -> None:
    if os.getpid() == process:
        isolation.close()


def _refuse_unknown(record: PluginRecord, cls: Any, device: str, options: object) -> None:
    """With what no check can be called: each would be skipped, or blame the plugin for it."""
    if device not in {"host", "cuda"}:
        raise ConfigError(f"checks: no device is called {device!r}", next='device="host" or "cuda"')
    if options is not None and not isinstance(options, cls.Options):
        raise ConfigError(
            f"checks: {options!r} are no options of {record}",
            next=f"options={cls.__name__}.Options(...)",
        )


def _record_of(cls: type) -> PluginRecord:
    """The record of the installed plugin that this class is, or one for the class alone."""
    kinds = [kind for kind in KINDS if isinstance(cls, type) and issubclass(cls, base_of(kind))]
    if not kinds:
        raise ConfigError(
            f"{cls!r} is no plugin: it derives from no base class of warcore",
            next="checks(MyBackend), where MyBackend is a class below warcore.AttentionBackend",
        )
    top = cls.__module__.partition(".")[0]
    for record in find_plugins(kind=kinds[0]):
        if record.state == "available" and record.entry_point.startswith((f"{top}.", f"{top}:")):
            try:
                found = load(record)
            except LoadError:
                continue
            if found is cls:
                return record
    return PluginRecord.of_class(kinds[0], cls)
