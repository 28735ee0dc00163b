"""Replays that a test can stop in the middle, and what the fence's tables ask of them."""

from __future__ import annotations

import itertools
import threading

import attrs
import pytest
import torch
from parts import TABLES, Logging, LoggingDevice, LoggingFence, batch_of, capture, runner_of
from toys import DIM, HEADS, INFO, LAYERS

from warcore import Bucket, ForwardMode, Output, SharedReadEnds
from warcore.device.host import HostDevice
from warcore.fence import ReadFence

PATIENCE_S = 60
"""Only a test that has failed waits so long."""
WIDTH = {ForwardMode.DECODE: 1, ForwardMode.TARGET_VERIFY: 3, ForwardMode.DRAFT_EXTEND: 2}
"""Tokens of each request, by mode."""
OWNERS = {ForwardMode.DRAFT_EXTEND: "draft"}

# ---- places where a replay stops -----------------------------------------------------------------


_GATES: dict[int, Gate] = {}
_NUMBERS = itertools.count()


class Gate:
    """A call of a captured step that does not return while the gate is shut."""

    def __init__(self):
        self.number = next(_NUMBERS)
        _GATES[self.number] = self
        self._arrived, self._open = threading.Event(), threading.Event()
        self._open.set()
        self._error = None

    def shut(self):
        self._arrived.clear()
        self._open.clear()

    def open(self):
        self._open.set()

    def wait_for_arrival(self):
        """Until the replay stands at the gate, or has passed it."""
        assert self._arrived.wait(PATIENCE_S)

    def call(self):
        """Go through; what a step contains."""
        torch.ops.warcore_tests.gate(torch.zeros(1), self.number)

    def fail(self, error):
        """The next call raises `error`."""
        self._error = error

    def pass_through(self):
        self._arrived.set()
        assert self._open.wait(PATIENCE_S)
        error, self._error = self._error, None
        if error is not None:
            raise error


def _gate(x, number):
    _GATES[number].pass_through()
    return x.clone()


_LIBRARY = torch.library.Library("warcore_tests", "FRAGMENT")
_LIBRARY.define("gate(Tensor x, int number) -> Tensor")
_LIBRARY.impl("gate", _gate, "CPU")


class Attending:
    """A model of one attention call, and then of whatever `body` captures."""

    info = INFO

    def __init__(self, body=lambda: None):
        self.body = body

    def forward(self, batch, attend, hidden_layers=()):
        x = torch.zeros(batch.padded_tokens, HEADS, DIM)
        x = attend(x, x, x, LAYERS[0])
        self.body()
        return Output(x.flatten(1) + 1)


class Gated(Logging):
    """Votes what it is told. Its in-graph metadata are a gate, its attention is none."""

    def __init__(self, vote, inside, log=None):
        super().__init__([] if log is None else log, vote=vote)
        self.inside = inside

    def init_forward_metadata_in_graph(self, batch):
        super().init_forward_metadata_in_graph(batch)
        self.inside.call()

    def forward(self, q, k, v, layer, batch):
        return q + k


# ---- the rows of `resolve` whose path is a graph -------------------------------------------------

LACKS = {True: (None,), False: ("device", "runner")}
"""Who is to blame if a capture has no marker."""
ROWS = [
    pytest.param(row, ForwardMode[mode], lack, id=f"{row['declared']}-{mode}-without_{lack}")
    for row in TABLES["resolve"]
    if row["path"] == "graph"
    for mode in row["modes"]
    for lack in LACKS[row["marker"]]
]


def bucket_of(mode, rows=2):
    return Bucket(mode, rows, rows * WIDTH[mode], max_seq_len=8)


def unmarked(kind):
    """A graph runner that hands over no marker, whatever its captures hold."""
    return type("Unmarked", (kind,), {"marker": lambda self, bucket: None})


def logged(kind, log):
    """A graph runner that logs its replays."""

    class Logged(kind):
        def replay(self, bucket):
            log.append("replay")
            return super().replay(bucket)

    return Logged


def replayed(kind, row, mode, lack, log):
    """One replay of a runner that owns the fence; (fence, runner), the fence waited for."""
    kind = logged(unmarked(kind) if lack == "runner" else kind, log)
    with LoggingDevice(log) as device:
        device.supports_external_events = lack != "device"
        backend = Gated(SharedReadEnds[row["declared"]], Gate(), log)
        role = OWNERS.get(mode, "target")
        runner = runner_of(device, backend, model=Attending(), role=role)
        stream = device.stream("forward")
        capture(device, stream, runner, [bucket_of(mode)], kind)
        log.clear()
        fence = LoggingFence(device, mode)
        fence.expect(runner, mode)
        runner.lend(fence)
        stream.submit(runner.execute, batch_of(mode, tokens=WIDTH[mode])).result()
        fence.close(device.event().record(stream))
        fence.wait(stream)
    return fence, runner


def check_order(kind, row, mode, lack):
    """Order, number of records, and whose ticket it is."""
    fence, runner = replayed(kind, row, mode, lack, log := [])
    # What is recorded after the table's part is the forward-done of the launch.
    assert [entry for entry in log if entry != "Event"] == [*row["order"], "record"]
    assert fence.reason.value == row["fence"]
    assert fence.mode is mode
    (offer,) = fence.offers
    marker = runner.captures.marker(bucket_of(mode))
    assert (marker is not None) == row["marker"]
    if row["fence"] != "fine":
        assert offer.ticket is None
    elif row["event_is_marker"]:
        assert offer.ticket.event is marker
    else:
        assert offer.ticket.event in runner.ring.events
        assert not offer.ticket.event.external


PLACES = {
    SharedReadEnds.PRE_REPLAY: 0,
    SharedReadEnds.IN_REPLAY: 1,
    SharedReadEnds.POST_REPLAY: 2,
    SharedReadEnds.UNKNOWN: 2,
}
"""Where the fence is reached: with the replay before the marker, behind it, or at its end."""


class Keeping(ReadFence):
    """Keeps what was offered."""

    offered = None

    def offer(self, runner, offer):
        self.offered = offer.ticket
        super().offer(runner, offer)


def check_position(kind, row, mode, lack):
    """Where in the replay the fence is reached, and that the schedule stream goes on there."""
    kind = unmarked(kind) if lack == "runner" else kind
    gates = inside, body = Gate(), Gate()
    with HostDevice("threads") as device:
        device.supports_external_events = lack != "device"
        backend = Gated(SharedReadEnds[row["declared"]], inside)
        role = OWNERS.get(mode, "target")
        runner = runner_of(device, backend, model=Attending(body.call), role=role)
        forward, schedule = device.stream("forward"), device.stream("schedule")
        capture(device, forward, runner, [bucket_of(mode)], kind)
        fence = Keeping(device, mode)
        fence.expect(runner, mode)
        runner.lend(fence)

        def step():
            runner.execute(batch_of(mode, tokens=WIDTH[mode]))
            fence.close(device.event().record())

        for gate in gates:
            gate.shut()
        replay = forward.submit(step)
        write = schedule.submit(fence.wait, schedule)
        passed = 0
        for gate in gates:
            gate.wait_for_arrival()
            if fence.offered is not None and fence.offered.query():
                write.result()
                assert not replay.done
                break
            assert not write.done
            passed += 1
            gate.open()
        for gate in gates:
            gate.open()
        replay.result()
        write.result()
        assert passed == PLACES[SharedReadEnds[row["expect"]]]


# ---- prefills ------------------------------------------------------------------------------------


def prefill(tokens):
    batch = batch_of(ForwardMode.EXTEND, tokens=tokens)
    return attrs.evolve(batch, logits_at=batch.q_start[1:].long() - 1)


def check_prefill_bucket(kind, row):
    """Which bucket a prefill of one request takes."""
    buckets = [Bucket(ForwardMode.EXTEND, 1, tokens, 64) for tokens in row["buckets"]]
    with LoggingDevice([]) as device:
        runner = runner_of(device, Gated(SharedReadEnds.PRE_REPLAY, Gate()), model=Attending())
        capture(device, device.stream("forward"), runner, reversed(buckets), kind)
        chosen = runner.captures.bucket_for(prefill(row["tokens"]))
    assert ("eager" if chosen is None else chosen.tokens) == row["expect"]


def check_prefill_gates(kind):
    """The gates see the live batch and the padded count, and publish before the replay."""
    log, seen = [], []

    class Sees(Gated):
        def prepare_prefill_shared_read_snapshot(self, forward_batch, num_qo_tokens):
            self.log.append("snapshot")
            seen.append((forward_batch, num_qo_tokens))

    batch = prefill(3)
    with LoggingDevice(log) as device:
        backend = Sees(SharedReadEnds.PRE_REPLAY, Gate(), log)
        runner = runner_of(device, backend, model=Attending())
        stream = device.stream("forward")
        capture(device, stream, runner, [Bucket(ForwardMode.EXTEND, 1, 5, 64)], logged(kind, log))
        log.clear()
        fence = LoggingFence(device, batch.mode)
        fence.expect(runner, batch.mode)
        runner.lend(fence)
        stream.submit(runner.execute, batch).result()
    assert log == ["out_graph", "snapshot", "Event", "record", "offer", "replay"]
    assert seen == [(batch, 5)]
