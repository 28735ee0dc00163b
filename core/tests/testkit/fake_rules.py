"""Checks for tests of how checks are run; registered nowhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from warcore.testkit import mark, observe
from warcore.testkit.detectors.guard import PageGuard
from warcore.testkit.outcome import Failure, NotApplicable, Refuted, Unproven
from warcore.testkit.packages.interpreter import answered, scratch
from warcore.testkit.runs.check import Check


def acts(subject):
    subject.cls.act()


def refuted(subject):
    failure = Failure("decode: PRE_REPLAY", "a read", "x.py:3: y", ("guard",), "decode 4", 7)
    raise Refuted(failure)


def passes(subject):
    pass


def unseen(subject):
    """Has no class to look at."""
    assert subject.cls is None


def asks(subject):
    """Asks in a fresh interpreter that never answers."""
    answered("testkit.fake_rules:silent", {})


def silent(task):
    signal.pause()


def absent(subject):
    raise NotApplicable("it has no graphs")


def blind(subject):
    raise Unproven("no detector")


def defect(subject):
    raise KeyError("kit")


def untouched(subject):
    """Fails where an earlier check has left anything behind."""
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_num_threads() == 1
    assert torch.is_grad_enabled()


def seen(subject):
    """Tells where it runs, and on what."""
    facts = (subject.device, subject.cells, subject.thorough, subject.options)
    raise NotApplicable(f"{os.getpid()} {facts}")


def declares(subject):
    """Walks one cell."""
    subject.ends["none"] = {"decode": "IN_REPLAY"}


def guarded(subject):
    """Looks with the page guard."""
    with PageGuard():
        pass


def robbed(subject):
    """Loses the page guard's signal twice, the second time behind the last closing."""
    with PageGuard() as guard:
        guard.allocate("table", (4,), torch.int32)
        window = guard.window()
        for _ in range(2):
            window.close()
            signal.signal(signal.SIGSEGV, signal.SIG_IGN)
            window.open()


def robbed_and_observed(subject):
    """Tells what an observation says of a step that takes the signal."""
    table = torch.zeros(4)

    def step():
        mark("read_done")
        signal.signal(signal.SIGSEGV, signal.SIG_IGN)

    raise NotApplicable(str(observe(step, {"table": table}).missing))


def waits(subject):
    """Makes a folder, tells who it is, and never ends."""
    with scratch("ask"), Path(os.environ["WARCORE_TEST_FILE"]).open("w") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        signal.pause()


def make(run, *, name=None, level="MUST", since="0.1", needs=(), kind="backend", **facts):
    name = f"{kind or 'plugin'}.{name or run.__name__}"
    rule = f"The rule of {name}."
    return Check(name, kind, since, level, needs, rule, "So.", "Mend.", run, **facts)
