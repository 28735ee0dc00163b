"""Hooks are for wiring: no step calls through pluggy."""

from __future__ import annotations

import pluggy
import pytest
from drafters import Wrong
from parts import engine
from toys import RowMajor

from warcore import SamplingParams, SharedReadEnds, Stager
from warcore.hooks import _Hooks
from warcore.hookspecs import ANSWERED_BY, PROJECT, ScopeHooks


class Snapshotting(RowMajor):
    def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
        return SharedReadEnds.PRE_REPLAY


class Reads(Wrong):
    """It and the stager below answer all hooks that there are."""

    later_prefill_reader = True


class Staging(Stager):
    def stage(self, batch):
        return True


@pytest.fixture
def calls(monkeypatch):
    """A list that grows with each call of a hook, on whichever path into pluggy."""
    made = []
    call, execute = pluggy.HookCaller.__call__, pluggy.PluginManager._hookexec

    def counted_call(self, **arguments):
        if self.name in ANSWERED_BY:  # pytest's own hooks come through here too
            made.append(self.name)
        return call(self, **arguments)

    def counted_execute(self, name, *rest):
        if self.project_name == PROJECT:
            made.append(name)
        return execute(self, name, *rest)

    monkeypatch.setattr(pluggy.HookCaller, "__call__", counted_call)
    monkeypatch.setattr(pluggy.PluginManager, "_hookexec", counted_execute)
    return made


def test_the_counting_counts(calls):
    manager = _Hooks(PROJECT)
    manager.add_hookspecs(ScopeHooks)
    manager.register(RowMajor(None), name="backend:toy")
    manager.hook.shared_read_ends(forward_mode=None)
    assert calls == ["shared_read_ends"] * 2


@pytest.mark.parametrize("loop", ["overlap", "normal"])
def test_a_hundred_steps_make_no_pluggy_call(calls, loop):
    with engine(
        loop=loop,
        backend=Snapshotting,
        spec_algo=Reads,
        stagers=[Staging],
        max_running_requests=2,
    ) as running:
        calls.clear()
        prompts = ["a prompt", "another", "more", "of them", "and", "so on"]
        running.generate(prompts, SamplingParams(max_new_tokens=40, ignore_eos=True))
        assert running.stats()["steps"] >= 100
        assert calls == []
