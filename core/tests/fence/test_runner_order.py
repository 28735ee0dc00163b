"""Where a runner records and offers in a step without a graph, row by row."""

from __future__ import annotations

import attrs
import pytest
from parts import TABLES, Logging, LoggingDevice, LoggingFence, Silent, batch_of, held, runner_of

from warcore import ForwardMode, SharedReadEnds, WiringError
from warcore.fence import FenceReason

CASES = [
    pytest.param(row, ForwardMode[mode], id=f"{row['declared']}-{mode}")
    for row in TABLES["resolve"]
    if row["path"] == "eager"
    for mode in row["modes"]
]
OWNERS = {ForwardMode.DRAFT_EXTEND: "draft"}


def run(log, mode, vote, *, fenced=True, body=None):
    """One phase of a runner that owns the fence; the fence, closed."""
    backend = Logging(log, vote=vote)
    with LoggingDevice(log) as device:
        model = Silent(body or (lambda: log.append("body")))
        runner = runner_of(device, backend, model=model, role=OWNERS.get(mode, "target"))
        fence = LoggingFence(device, mode)
        fence.expect(runner, mode)
        runner.lend(fence if fenced else None)
        stream = device.stream("forward")
        pending = stream.submit(runner.execute, batch_of(mode))
        fence.close(device.event().record(stream), pending.error)
        fence.wait(stream)
        assert held(runner.ring) == 0
    return fence


@pytest.mark.parametrize(("row", "mode"), CASES)
def test_the_event_goes_where_the_latest_vote_says(row, mode):
    log = []
    fence = run(log, mode, SharedReadEnds[row["declared"]])
    phases = [entry for entry in log if entry not in {"Event", "snapshot"}]
    assert phases[: len(row["order"])] == row["order"]
    assert phases[len(row["order"]) :] == ["record"]  # the forward-done of the launch
    assert fence.reason.value == row["fence"]
    assert fence.mode is mode


@pytest.mark.parametrize("vote", list(SharedReadEnds), ids=lambda vote: vote.name)
def test_without_a_fence_nothing_is_recorded_or_offered(vote):
    log = []
    with LoggingDevice(log) as device:
        runner = runner_of(device, Logging(log, vote=vote))
        device.stream("forward").submit(runner.execute, batch_of(ForwardMode.DECODE)).result()
    assert log == ["out_graph", "in_graph"]


def test_undeclared_names_whose_vote_it_was():
    fence = run([], ForwardMode.DECODE, SharedReadEnds.UNKNOWN)
    assert (fence.reason, fence.detail) == (FenceReason.UNDECLARED, "backend:toy")


def test_a_phase_after_the_settling_one_is_an_error_before_it_reads():
    log = []
    with LoggingDevice(log) as device:
        runner = runner_of(device, Logging(log))
        fence = LoggingFence(device, ForwardMode.DECODE)
        fence.expect(runner, ForwardMode.DECODE)
        runner.lend(fence)
        stream = device.stream("forward")
        stream.submit(runner.execute, batch_of(ForwardMode.DECODE)).result()
        log.clear()
        with pytest.raises(WiringError, match="would read shared buffers after the phase"):
            stream.submit(runner.execute, batch_of(ForwardMode.TARGET_VERIFY)).result()
    assert log == []


def test_more_tokens_than_a_batch_says_are_an_error_before_anything_reads():
    log = []
    decode = batch_of(ForwardMode.DECODE, size=2)
    verify = batch_of(ForwardMode.TARGET_VERIFY, size=2, tokens=3)
    stale = attrs.evolve(verify, max_q_len=decode.max_q_len)
    with LoggingDevice(log) as device:
        runner = runner_of(device, Logging(log))
        stream = device.stream("forward")
        with pytest.raises(WiringError, match="6 tokens, and says that none of its 2 requests has"):
            stream.submit(runner.execute, stale).result()
    assert log == []


def test_a_draft_drafts_first_and_settles_with_draft_extend():
    log = []
    with LoggingDevice(log) as device:
        draft = runner_of(device, Logging(log), role="draft")
        fence = LoggingFence(device, ForwardMode.DECODE)
        fence.expect(draft, ForwardMode.DRAFT_EXTEND)
        draft.lend(fence)
        stream = device.stream("forward")
        stream.submit(draft.execute, batch_of(ForwardMode.DECODE)).result()
        assert not fence.settled
        assert held(draft.ring) == 0  # superseded at once
        stream.submit(draft.execute, batch_of(ForwardMode.DRAFT_EXTEND)).result()
        assert fence.settled_by == 1
        assert fence.mode is ForwardMode.DRAFT_EXTEND
        assert held(draft.ring) == 1
        fence.wait(stream)
        assert held(draft.ring) == 0


@pytest.mark.parametrize("vote", list(SharedReadEnds), ids=lambda vote: vote.name)
def test_a_body_that_raises_leaves_a_coarse_fence_and_no_held_ticket(vote):
    def body():
        raise ArithmeticError("in a layer")

    fence = run([], ForwardMode.DECODE, vote, body=body)
    assert fence.reason is FenceReason.FORWARD_ERROR
    assert "in a layer" in fence.detail
