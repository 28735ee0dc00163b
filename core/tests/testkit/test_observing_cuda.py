"""observe on a GPU: what it must wait for, since a step may use streams of its own.

A tensor that says that it lies on a GPU stands in for one that does.
"""

from __future__ import annotations

import pytest
import torch

from warcore.testkit import mark
from warcore.testkit.detectors.overwriting import poisoned, restore, settle, values_of


class OnGpu(torch.Tensor):
    """Lies in host memory, and says otherwise."""

    is_cuda = property(lambda self: True)


@pytest.fixture
def log(monkeypatch):
    """What happens: the waits for the device, and what a test adds."""
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: events.append("wait"))
    return events


@pytest.fixture
def shared():
    return {"table": torch.arange(6).as_subclass(OnGpu)}


def test_tensors_are_copied_when_their_writers_are_done_and_before_anybody_writes_again(
    log, shared
):
    values_of(shared)
    assert log == ["wait", "wait"]


def test_what_is_written_back_is_there_for_every_stream(log, shared):
    restore(shared, {"table": torch.zeros(6, dtype=torch.int64)})
    assert log == ["wait"]
    assert shared["table"].sum() == 0


def test_nobody_waits_for_a_device_that_holds_nothing(log):
    settle({"table": torch.arange(6)})
    assert log == []


def run(step, shared, expected):
    return poisoned(step, shared, values_of(shared), [expected])


def test_each_run_begins_and_ends_with_all_streams_done(log, shared):
    table = shared["table"]

    def step():
        log.append("step")
        mark("read_done")
        return table.sum().as_subclass(torch.Tensor).clone()

    found, missing = run(step, shared, torch.tensor(15))
    assert [(access.buffer, access.seen_by) for access in found] == [("table", {"poison"})]
    assert not missing
    around = [log[at - 1 : at + 2] for at, event in enumerate(log) if event == "step"]
    assert around == [["wait", "step", "wait"]] * 4


def test_a_step_that_fails_after_an_overwrite_is_over_before_the_tensor_is_put_back(log, shared):
    runs = []

    def step():
        runs.append(1)
        mark("read_done")
        log.append("step")
        if len(runs) > 1:
            raise IndexError("out of range")
        return torch.tensor(15)

    run(step, shared, torch.tensor(15))
    assert {log[at + 1] for at, event in enumerate(log) if event == "step"} == {"wait"}
    assert shared["table"].tolist() == list(range(6))
